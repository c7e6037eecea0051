"""What freed memory costs under the environment that Dask's nanny gives a worker."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

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

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc alone")


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
