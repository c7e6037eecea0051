"""Connecting ranks in different processes.

The ranks meet at their stores, and each gets its :class:`~dask_dgpu.comm.protocol.Comm`. This
module does not use the default group of ``torch.distributed``, and imports transports only on first
use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from dask_dgpu.comm.common import Lifetime
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.comm.store import Store, meet
from dask_dgpu.errors import CommError

if TYPE_CHECKING:
    from dask_dgpu.comm.streams import Streams

Transport = Literal["dask", "nccl", "tcp", "ucx"]

#: The transports of :func:`connect`.
TRANSPORTS: tuple[Transport, ...] = ("dask", "nccl", "tcp", "ucx")


def connect(
    kind: Transport,
    *,
    store: Store,
    host: str,
    rank: int,
    size: int,
    timeout: float,
    patient: bool = False,
    device: int | None = None,
    ports: tuple[int, int] | None = None,
    streams: Streams | None = None,
    lifetime: Lifetime | None = None,
) -> Comm:
    """Connect with the other ranks; returns when all have connected.

    - ``store`` is this rank's, and joined to those of the other ranks only. It is used once.
    - ``host`` is the address or name of this rank's host.
    - Other ranks are awaited for ``timeout`` seconds, if ``patient`` until aborted: they may be
      busy. Once all are there, connecting takes at most ``timeout`` seconds.
    - ``device`` is this rank's CUDA device, in this process's numbering. Without it, ``"ucx"`` only
      carries NumPy arrays; ``"dask"`` and ``"tcp"`` never carry others.
    - ``"ucx"`` listens on ``ports`` from the first to the last, if there are any; ``"tcp"`` and
      ``"nccl"`` cannot be told.
    - ``streams`` are those of ``"dask"``, which it closes.
    - Aborting ``lifetime``, from any thread, ends the connecting. Its ``threads`` then include a
      thread that is still blocked in a library.

    Raises
    ------
    CommError
        If the time is over, or a rank is lost. A communicator that is created later is closed.
    CommAbortedError
        If ``lifetime`` was aborted.
    """
    if kind not in TRANSPORTS:
        raise ValueError(f"expected a transport of {TRANSPORTS}, got {kind!r}")
    attempt = Lifetime(threads=None if lifetime is None else lifetime.threads)
    if lifetime is not None:
        lifetime.adopt(attempt)
    ranks: dict[str, Any] = {"rank": rank, "size": size, "lifetime": attempt}
    # before they meet, so that all ranks import at the same time
    join = _joining(kind, host, device, ports, streams)
    meet(store, "connect", "", **ranks, limit=None if patient else timeout)
    create = partial(join, store, **ranks, timeout=timeout)
    # the thread's own error, which names the missing ranks, comes first
    return _abandonable(create, attempt, timeout + 1.0, f"rank {rank}'s connection")


def _joining(
    kind: Transport,
    host: str,
    device: int | None,
    ports: tuple[int, int] | None,
    streams: Streams | None,
) -> Callable[..., Comm]:
    """Import a transport; return what creates its communicator when all ranks are there."""
    if kind == "dask":
        from dask_dgpu.comm.streams import join

        if streams is None:
            raise ValueError("expected streams for the transport 'dask', got None")
        return partial(join, streams=streams)
    if kind == "tcp":
        from dask_dgpu.comm import sockets

        return partial(sockets.connect, host=host)
    if kind == "ucx":
        return partial(_import_ucx().join, device=device, ports=ports)
    from dask_dgpu.comm.nccl.communicator import NcclComm

    return partial(NcclComm, device=device or 0)


def _abandonable(create: Callable[[], Comm], attempt: Lifetime, limit: float, what: str) -> Comm:
    """Connect in a thread, which is abandoned if the attempt ends first.

    Only success or a library's own time limit ends its calls to connect. A communicator that is
    created too late is closed.
    """
    connected: Future[Comm] = Future()

    def connect_or_note() -> None:
        try:
            comm = create()
        except Exception as error:
            connected.set_exception(error)
        else:
            connected.set_result(comm)
            if attempt.reason is not None:
                comm.close()
        attempt.wake()

    # A daemon: it may block within a library. The end of a worker waits a while for it.
    thread = threading.Thread(target=connect_or_note, name="dgpu-connect", daemon=True)
    attempt.threads.add(thread)
    thread.start()
    try:
        if not attempt.wait_for(connected.done, limit):
            raise CommError(f"{what} did not finish within {limit:g} s")
    except BaseException:
        attempt.abort(f"{what} was abandoned")
        if connected.done() and connected.exception() is None:
            connected.result().close()
        raise
    return connected.result()


def _import_ucx() -> Any:
    try:
        from dask_dgpu.comm import ucx
    except (ImportError, OSError) as error:  # a library of a damaged installation
        raise CommError(
            f"the transport 'ucx' needs ucxx: pip install 'dask-dgpu[ucx]' ({error})"
        ) from error
    return ucx
