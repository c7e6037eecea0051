"""Communicators of each transport, for tests that know only their protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.link_server import this_server
from benchmarks.relay import join_relay
from dask_dgpu.comm.bootstrap import connect
from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.comm.timed import TimedComm

WRAPPERS: dict[str, Callable[..., Comm]] = {"local": lambda comm: comm, "timed": TimedComm}
"""Of communicators in threads."""


def connected(
    kind: Any, rank: int, size: int, address: Any, name: str, timeout: float = 20.0, **more: Any
) -> Comm:
    """Connect ranks in processes of this machine that meet at a relay."""
    return connect(
        kind,
        host="127.0.0.1",
        store=join_relay(address, name),
        rank=rank,
        size=size,
        timeout=timeout,
        streams=this_server().streams(name) if kind == "dask" else None,
        **more,
    )


def on_threads(size: int, program: Callable[..., Any], *args: Any) -> list[Any]:
    """Call ``program(comm, *args)`` on ranks that are threads; return the results."""
    return run_local(size, program, *args)
