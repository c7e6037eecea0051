"""Asking the workers of a cluster, some of which may be lost meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from dask_dgpu.errors import DgpuError

if TYPE_CHECKING:
    from distributed import Client

T = TypeVar("T")


PATIENCE = 30
"""Seconds to wait for the first worker; without one, nothing is known of the cluster."""


def await_worker(client: Client) -> None:
    """Wait until a cluster has a worker.

    Raises
    ------
    DgpuError
        If none starts in time.
    """
    try:
        client.wait_for_workers(1, timeout=PATIENCE)
    except TimeoutError as error:
        raise DgpuError(
            f"expected client to have a worker within {PATIENCE} s, got none from {client!r}: "
            "client.wait_for_workers(1) waits longer"
        ) from error


def ask_workers(client: Client, function: Callable[..., T], *args: Any) -> dict[str, T]:
    """Call a function on all workers; return the results by address, without lost workers.

    Raises
    ------
    DgpuError
        If all workers are lost.
    Exception
        The error of the function on a worker.
    """
    answers: dict[str, Any] = client.run(function, *args, on_error="return")
    known = {worker: each for worker, each in answers.items() if not isinstance(each, OSError)}
    for each in known.values():
        if isinstance(each, Exception):
            raise each
    if answers and not known:
        raise DgpuError(f"lost all workers: {', '.join(sorted(answers))}")
    return known
