"""Kernels on workers that are slow or fail, so that a test can hit the middle of a program."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import wraps
from typing import Any

import pytest
from distributed import Client

from dask_dgpu.algorithms import probe
from dask_dgpu.batches import whole
from dask_dgpu.kernels import gemm
from dask_dgpu.session import enable


def slow_blocks(client: Client, seconds: float) -> None:
    """Have every product of panels, and of stacks, take this long."""

    def slowly(multiply: Any) -> Any:
        @wraps(multiply)
        def accumulate(out: Any, a: Any, b: Any) -> None:
            time.sleep(seconds)
            multiply(out, a, b)

        return accumulate

    def slow_down() -> None:
        gemm.accumulate = slowly(gemm.accumulate)
        gemm.accumulate_stack = slowly(gemm.accumulate_stack)

    client.run(slow_down)


def restore_blocks() -> None:
    """Undo what a test did to the products in this worker."""
    gemm.accumulate = getattr(gemm.accumulate, "__wrapped__", gemm.accumulate)
    stack = gemm.accumulate_stack
    gemm.accumulate_stack = getattr(stack, "__wrapped__", stack)


def spoil_blocks(error: Exception) -> None:
    """Have every product of panels in this worker fail."""

    @wraps(gemm.accumulate)
    def accumulate(out: Any, a: Any, b: Any) -> None:
        raise error

    gemm.accumulate = accumulate


def find_workers_of(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ``enable`` find workers of another kind of device."""
    gather = enable.gather
    monkeypatch.setattr(enable, "gather", lambda *args: replace(gather(*args), device=device))


def allow_small_blocks(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have functions that run as one graph get blocks of so few bytes."""
    monkeypatch.setattr(whole, "LEAST", nbytes)


def die_while_measuring() -> None:
    """End this worker when it is asked to measure its products."""
    probe.PARTS["float32"] = lambda comm, device, hosts: os._exit(1)
