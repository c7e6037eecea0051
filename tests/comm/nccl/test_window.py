"""The memory of a device, as a worker sees it."""

from __future__ import annotations

import subprocess
import sys

import pytest

LARGE = 16 << 30
"""Bytes, more than other tests on the same device may take or free meanwhile."""

HOLD = f"import cupy; held = cupy.empty({LARGE}, 'u1'); print('held', flush=True); input()"


@pytest.mark.gpu
def test_obtainable_is_all_but_what_others_hold() -> None:
    import cupy

    from dask_dgpu.comm.nccl.window import obtainable

    before = obtainable()
    mine = cupy.empty(LARGE, "u1")
    assert obtainable() > before - LARGE / 2
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == b"held"
        beside = obtainable()
        other.communicate(b"\n")
    assert beside < before - LARGE / 2
    del mine
    cupy.get_default_memory_pool().free_all_blocks()
