"""What one device does alone: its rate at a large product, by the libraries there are.

Workers import this module without CUDA.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from harness import no_wait
from worker_harness import synchronize

RATE_SIDE = {"cuda": 16384, "cpu": 512}


def cupy_rate(n: int, dtype: str) -> float:
    """Return the operations a second of a large product on one GPU, by CuPy."""
    import cupy

    # drawn in the dtype itself: a GPU runs faster on digits that are mostly zero
    a, b = (cupy.random.random((n, n), dtype=dtype) for _ in range(2))
    out = cupy.empty((n, n), dtype)
    return _rate(lambda: cupy.matmul(a, b, out=out), synchronize, n)


def torch_rate(n: int, dtype: str) -> float:
    """Return the operations a second of a large product on one GPU, by torch."""
    import torch

    def multiply() -> float:
        a, b = (torch.rand(n, n, device="cuda", dtype=getattr(torch, dtype)) for _ in range(2))
        out = torch.empty_like(a)
        return _rate(lambda: torch.mm(a, b, out=out), torch.cuda.synchronize, n)

    rate = multiply()
    torch.cuda.empty_cache()
    return rate


def numpy_rate(n: int, dtype: str) -> float:
    """Return the operations a second of a product by NumPy."""
    a, b = (np.random.default_rng(0).random((n, n)).astype(dtype) for _ in range(2))
    out = np.empty((n, n), dtype)
    return _rate(lambda: np.matmul(a, b, out=out), no_wait, n)


def _rate(multiply: Callable[[], Any], synchronize: Callable[[], None], n: int) -> float:
    seconds = []
    for _ in range(5):
        synchronize()
        start = time.perf_counter()
        multiply()
        synchronize()
        seconds.append(time.perf_counter() - start)
    return 2 * n**3 / median(seconds[2:])


RATES: dict[str, dict[str, Callable[[int, str], float]]] = {
    "cuda": {"cupy": cupy_rate, "torch": torch_rate},
    "cpu": {"numpy": numpy_rate},
}
