"""The status of real GPUs, beside what ``nvidia-smi`` says of them."""

from __future__ import annotations

import csv
import subprocess
from typing import Any

import pytest

import dask_dgpu as dgpu
from tests.cluster.conftest import CUDA

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(120),
    pytest.mark.parametrize("device", [CUDA], indirect=True),
]

QUERY = ["nvidia-smi", "--format=csv,noheader,nounits"]
MIB, GIB = 2**20, 2**30


def asked(fields: str) -> list[str]:
    """Return a line of these fields for each GPU."""
    command = [*QUERY, f"--query-gpu={fields}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_memory_is_that_of_nvidia_smi(client: Any) -> None:
    found = dgpu.gpu_status(client).to_dict()
    lines = asked("index,name,memory.total")
    assert found.keys() == client.scheduler_info(n_workers=-1)["workers"].keys()
    known = {
        (f"{index} ({name})", int(total))
        for index, name, total in csv.reader(lines, skipinitialspace=True)
    }
    for device in found.values():
        assert (device["name"], device["total"] // MIB) in known
        taken = (device["used"] or 0) + (device["others"] or 0)  # None in some containers
        assert taken <= device["total"] - device["free"] + MIB
        assert 0 <= device["safe"] <= device["total"]


def test_free_memory_is_that_of_nvidia_smi(client: Any) -> None:
    """Within what another process may take between the two."""
    shown = [int(free) * MIB for free in asked("memory.free")]
    for device in dgpu.gpu_status(client).to_dict().values():
        assert min(abs(device["free"] - free) for free in shown) < GIB
