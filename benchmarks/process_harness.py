"""Processes of their own: with a number of BLAS threads, and as ranks over TCP, without Dask."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from relay import Relay, join_relay

from dask_dgpu.comm import bootstrap
from dask_dgpu.comm.protocol import Comm

HOST = "127.0.0.1"
CONNECTING = 120.0
"""Seconds for ranks to connect, and without progress."""
PATIENCE = 120.0
"""Seconds that a process has to end, once all is said."""
BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

_CONTEXT: Any = multiprocessing.get_context(
    multiprocessing.get_start_method(allow_none=True) or "spawn"
)
"""Forked processes would keep the BLAS threads of their server: tests alone ask for them."""


@contextmanager
def blas_threads(number: int) -> Iterator[None]:
    """Give processes that are started in the block so many BLAS threads each.

    Yields
    ------
    None
        Start the processes in the block.
    """
    before = {name: os.environ.get(name) for name in BLAS_THREADS}
    os.environ.update(dict.fromkeys(BLAS_THREADS, str(number)))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@contextmanager
def processes(
    number: int, target: Callable[..., None], arguments: tuple[Any, ...]
) -> Iterator[list[Connection]]:
    """Run ``target(rank, pipe, *arguments)`` in new processes.

    Yields
    ------
    list of Connection
        Our ends of the pipes; reading one whose process died raises ``EOFError``.
    """
    pairs = [_CONTEXT.Pipe() for _ in range(number)]
    started = [
        _CONTEXT.Process(target=target, args=(rank, theirs, *arguments), daemon=True)
        for rank, (_, theirs) in enumerate(pairs)
    ]
    for process, (_, theirs) in zip(started, pairs, strict=True):
        process.start()
        theirs.close()
    try:
        yield [ours for ours, _ in pairs]
        for process in started:
            process.join(PATIENCE)
    finally:
        for process in started:
            process.kill()


def run_ranks(number: int, program: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return what ``program(comm, *arguments)`` returns in each of some processes.

    They are connected over TCP, and each has one BLAS thread.
    """
    relay = Relay()
    given = number, relay.address, program, arguments
    with blas_threads(1), processes(number, _run_rank, given) as pipes:
        found = [pipe.recv() for pipe in pipes]
        for pipe in pipes:
            pipe.send("all are done")
    return found


def _run_rank(
    rank: int,
    pipe: Connection,
    size: int,
    relay: str,
    program: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    comm: Comm = bootstrap.connect(
        "tcp",
        host=HOST,
        store=join_relay(relay, "benchmark"),
        rank=rank,
        size=size,
        timeout=CONNECTING,
    )
    pipe.send(program(comm, *arguments))
    pipe.recv()
    comm.close()


def slowest(seconds: list[list[float]]) -> list[float]:
    """Return the seconds of the slowest rank in each repetition, given those of each rank."""
    return [max(times) for times in zip(*seconds, strict=True)]
