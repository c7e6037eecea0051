"""Blocks that are on workers without Dask's knowledge, as futures of a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dask_dgpu.batches.windows.client import LostError

if TYPE_CHECKING:
    from distributed import Client, Scheduler


async def declared(client: Client, address: str, nbytes: dict[Any, int], of: type) -> Any:
    """Tell the scheduler which blocks a worker has; return their futures by key.

    Blocks are arrays of the type ``of``.
    """
    from distributed import Future

    inner: Any = client
    futures: dict[Any, Any] = {key: Future(key, inner) for key in nbytes}
    if not await inner._run_on_scheduler(_declare, address, nbytes, inner.id):
        raise LostError.of(address)
    for key in nbytes:
        inner.futures[key].finish(type=of)
    return futures


def _declare(
    address: str, nbytes: dict[Any, int], client: str, *, dask_scheduler: Scheduler
) -> bool:
    """Let the scheduler know of blocks on a worker, unless it is lost."""
    if address not in dask_scheduler.workers:
        return False  # of these blocks keys would stay for ever
    who_has = {key: [address] for key in nbytes}
    dask_scheduler.update_data(who_has=who_has, nbytes=nbytes, client=client)
    return True
