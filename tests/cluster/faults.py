"""Workers that are slow or fail, so that a test can hit the middle of a program."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from dask_dgpu.algorithms import probe
from dask_dgpu.batches import whole
from dask_dgpu.comm import bootstrap
from dask_dgpu.environment import facts
from dask_dgpu.kernels import gemm
from dask_dgpu.runtime.scheduler.run import Run
from dask_dgpu.runtime.worker import plugin
from dask_dgpu.session import enable
from graph_opt.model.names import is_gang


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


def is_first(flag: Path) -> bool:
    """Make a file; return whether nobody else has."""
    try:
        flag.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def exhaust_blocks(flag: Path, everywhere: bool) -> None:
    """Have products on this worker lack memory until there is a file.

    The first worker to fail makes the file, unless they fail ``everywhere``.
    """

    @wraps(gemm.accumulate)
    def accumulate(out: Any, a: Any, b: Any) -> None:
        if not flag.exists() and (everywhere or is_first(flag)):
            raise MemoryError("no room for a panel")
        multiply(out, a, b)

    multiply, gemm.accumulate = gemm.accumulate, accumulate


def exhaust_connections(flag: Path, everywhere: bool) -> None:
    """Have ranks on this worker that have met fail to connect, as ``exhaust_blocks`` does."""

    @wraps(bootstrap._joining)
    def failing(*args: Any) -> Callable[..., Any]:
        join = joining(*args)

        def connect(*given: Any, **more: Any) -> Any:
            if not flag.exists() and (everywhere or is_first(flag)):
                raise MemoryError("no room for buffers")
            return join(*given, **more)

        return connect

    joining, bootstrap._joining = bootstrap._joining, failing


def restore_connections() -> None:
    """Undo what a test did to the connections of this worker."""
    bootstrap._joining = getattr(bootstrap._joining, "__wrapped__", bootstrap._joining)


def watch_plans(
    monkeypatch: pytest.MonkeyPatch,
    before: Callable[[Any], Awaitable[None] | None] = lambda run: None,
    after: Callable[[Any], None] = lambda run: None,
) -> None:
    """Call functions with each run before and after the scheduler, in this process, plans it."""
    plan = Run.plan

    async def planning(run: Run, *args: Any) -> None:
        if (waiting := before(run)) is not None:
            await waiting
        await plan(run, *args)
        after(run)

    monkeypatch.setattr(Run, "plan", planning)


def deliver_by_tasks() -> None:
    """Have ``out`` tasks return the blocks of results, as if this worker knew no such tasks."""

    def store(worker: Any, results: Any) -> Any:
        return store.original(worker, {key: results[key] for key in results if is_gang(key)})

    store.original = plugin.store
    plugin.store = store


def deliver_directly() -> None:
    """Undo what ``deliver_by_tasks`` did to this worker."""
    plugin.store = plugin.store.original


def pretend_free_memory(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers on CPUs say that so many bytes are free."""
    monkeypatch.setattr(facts, "memory_for_blocks", lambda: nbytes)
