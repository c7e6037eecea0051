"""How many files of the packages a computation enters: what a reader has to follow."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from tests.support.entered import noting

X = da.from_array(np.random.default_rng(0).random((60, 44)), chunks=(20, 11))
COMPUTATIONS: dict[str, tuple[Callable[[], da.Array], int]] = {
    "product": (lambda: X @ X.T, 48),
    "fft2": (lambda: da.fft.fft2(X), 40),
}


def entered(function: Callable[[], Any]) -> set[str]:
    """Return the files of the packages in which functions are called, on all threads."""
    found: set[str] = set()
    hook = noting(found)
    gc.collect()  # finalizers of what earlier tests left are no part of it
    before = sys.getprofile()
    threading.setprofile(hook)
    sys.setprofile(hook)
    try:
        function()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    return found


@pytest.mark.parametrize("name", COMPUTATIONS)
def test_computation_enters_few_files(name: str) -> None:
    make, most = COMPUTATIONS[name]
    with dgpu.enable(local_ranks=2, when="always", on_error="raise"):
        make().compute()  # Dask's functions are looked up once in a process
        files = entered(lambda: make().compute())
    assert "dask_dgpu/runtime/execute.py" in files
    assert len(files) <= most, sorted(files)
