"""What freed memory costs under the environment that Dask's nanny gives a worker."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.memory import glibc

FAULTS = """
import resource, sys
import numpy as np, scipy.fft
from dask_dgpu.kernels.device.host import keep_small_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    scipy.fft.fft(x, axis=0, overwrite_x=True)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

x = np.ones((65536, 32), complex)
faults()
before = faults()
changed = keep_small_memory()
faults()
print(before, changed, faults())
"""


def measured(threshold: str | None) -> tuple[int, bool, int]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    if threshold is not None:
        environment["MALLOC_TRIM_THRESHOLD_"] = threshold
    command = [sys.executable, "-c", FAULTS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    before, changed, after = done.stdout.split()
    return int(before), changed == "True", int(after)


@pytest.mark.slow
@glibc
def test_transforms_reuse_memory_under_a_nanny() -> None:
    before, changed, after = measured("65536")
    assert changed
    assert before > 2000  # a workspace of 2048 pages for every eight lines, larger than any gap
    assert after < before / 5


@pytest.mark.slow
@glibc
@pytest.mark.parametrize("threshold", [None, "1000000000", "none"])
def test_leaves_other_environments_alone(threshold: str | None) -> None:
    _, changed, _ = measured(threshold)
    assert not changed


RETURNED = """
import numpy as np, psutil
from dask_dgpu.kernels.device.host import return_memory

def resident():
    return psutil.Process().memory_info().rss >> 20

first = resident()
kept = [np.ones(1 << 20) for _ in range(64)]
top = np.ones(1000)
del kept
before = resident()
return_memory()
print(first, before, resident())
"""


@pytest.mark.slow
@glibc
def test_freed_memory_is_returned() -> None:
    """In MiB; 64 blocks of 8 from a heap that keeps all."""
    kept = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}
    kept["MALLOC_MMAP_THRESHOLD_"] = str(1 << 34)
    command = [sys.executable, "-c", RETURNED]
    environment = os.environ | kept
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    first, before, after = map(int, done.stdout.split())
    assert before > first + 500
    assert after < first + 16
