"""Versions of packages in the processes of a cluster."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

import dask_dgpu as dgpu
from dask_dgpu.errors import DgpuError
from dask_dgpu.runtime import installed
from dask_dgpu.runtime.installed import differences, installed_here
from tests.cluster.observe import eventually

HERE = installed_here()


def test_versions_without_an_import() -> None:
    assert HERE["numpy"] == np.__version__
    assert HERE["dask"]


@pytest.mark.parametrize("name", ["dask", "numpy"])
def test_workers_have_the_versions_of_the_client(name: str) -> None:
    found = differences({"a": HERE, "b": HERE | {name: "0.9"}})
    assert found == {"b": f"has {name} 0.9, expected {HERE[name]}"}


def test_workers_have_cupy_and_torch_of_most_workers() -> None:
    usual = HERE | {"cupy": "14.0", "torch": "2.9"}
    workers = {"a": usual, "b": usual, "c": usual | {"cupy": None, "torch": "2.8"}}
    text = "has cupy not installed, expected 14.0 and torch 2.8, expected 2.9"
    assert differences(workers) == {"c": text}
    assert differences({}) == {}


def answers(**versions: str | None) -> dict[str, Any]:
    return {place: {"packages": {"dask_dgpu": each}} for place, each in versions.items()}


def test_one_sentence_names_hosts_and_versions() -> None:
    installed._check(answers(scheduler=dgpu.__version__) | {"lost": None})
    wrong = answers(scheduler=None, a="0.0.9", b=dgpu.__version__, c=None, d=None, e=None)
    with pytest.raises(DgpuError) as raised:
        installed._check(wrong)
    assert str(raised.value) == (
        f"expected dask_dgpu {dgpu.__version__} on the scheduler and all workers, as on the "
        "client, got none on scheduler, 0.0.9 on a, none on c and 2 more"
    )


WITHOUT = """
import importlib.metadata as metadata, sys
before = metadata.version
def version(name):
    if name.replace("-", "_") != "dask_dgpu":
        return before(name)
    if {found!r} is None:
        raise metadata.PackageNotFoundError(name)
    return {found!r}
metadata.version = version
sys.modules["dask_dgpu"] = None
from distributed.cli.{command} import main
main()
"""
"""A process of a cluster that has another version of dask_dgpu, or none."""


@contextmanager
def process(command: str, *arguments: str, found: str | None) -> Iterator[None]:
    code = WITHOUT.format(command=command, found=found)
    with subprocess.Popen([sys.executable, "-c", code, *arguments]) as running:
        try:
            yield
        finally:
            running.terminate()


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("found", [None, "0.0.9"])
def test_enable_names_a_worker(found: str | None) -> None:
    options = {"processes": False, "threads_per_worker": 1, "dashboard_address": ":0"}
    with (
        LocalCluster(n_workers=0, protocol="tcp", **options) as cluster,
        Client(cluster) as client,
        process("dask_worker", cluster.scheduler_address, "--no-nanny", found=found),
    ):
        client.wait_for_workers(1, timeout=60)
        (worker,) = client.scheduler_info(n_workers=-1)["workers"]
        with pytest.raises(DgpuError, match=f"got {found or 'none'} on {worker}$"):
            dgpu.enable(client)


@pytest.mark.slow
@pytest.mark.cluster
def test_enable_and_check_health_name_a_scheduler(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    where = ("--port", "0", "--no-dashboard", "--scheduler-file", str(file))
    with process("dask_scheduler", *where, found=None):
        eventually(file.exists)
        with Client(scheduler_file=str(file), timeout=60) as client:
            for call in (dgpu.enable, dgpu.check_health):
                with pytest.raises(DgpuError, match="client, got none on scheduler tcp://"):
                    call(client)
