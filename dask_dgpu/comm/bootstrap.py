"""How ranks in different processes become a communicator.

One process serves a store; every rank connects to it, under the same name, and
gets its :class:`~dask_dgpu.comm.protocol.Comm`. Nothing here touches the
default group of ``torch.distributed``, nor imports torch before it is needed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from dask_dgpu.comm.lifetime import Lifetime
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.comm.rendezvous import meet
from dask_dgpu.errors import CommError

Transport = Literal["gloo", "nccl", "ucx"]

#: The transports that :func:`connect` knows.
TRANSPORTS: tuple[Transport, ...] = ("gloo", "nccl", "ucx")

# A connection to a store cannot be aborted, so it is tried for this long (s) again and again.
_STORE_SECONDS = 2.0
_PAUSE = 0.05


@dataclass(frozen=True)
class StoreServer:
    """A store that is served as long as this object lives.

    Attributes
    ----------
    host : str
        Where ranks reach it.
    port : int
        The port, chosen by the system.
    """

    host: str
    port: int
    _store: Any = field(repr=False, compare=False)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, as :func:`connect` takes them."""
        return self.host, self.port


def serve_store(host: str) -> StoreServer:
    """Serve a store on a free port of this host; returns at once.

    Parameters
    ----------
    host : str
        Address or name under which the ranks reach this host.
    """
    dist = _torch_distributed()
    try:
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    except RuntimeError as error:
        raise CommError(f"No store can be served on {host!r}: {error}") from error
    return StoreServer(host, store.port, store)


def connect(
    kind: Transport,
    *,
    host: str,
    store_address: tuple[str, int],
    rank: int,
    size: int,
    name: str,
    timeout: float,
    limit: float | None = None,
    patient: bool = False,
    device: int | None = None,
    lifetime: Lifetime | None = None,
) -> Comm:
    """Join the ranks that connect under ``name``; returns when all have come.

    Parameters
    ----------
    kind : {"gloo", "nccl", "ucx"}
        The transport, alike on all ranks.
    host : str
        Address or name of this rank's host, to listen on.
    store_address : tuple of str and int
        Where the store is served.
    rank, size : int
        Which rank of how many this is.
    name : str
        What the communicator is called; every name is used once in a store.
    timeout : float
        Seconds to wait for the other ranks, and to connect with them.
    limit : float, optional
        Seconds after which a later wait raises. Without it a wait lasts until the
        communicator is aborted: by a lost peer, or from outside.
    patient : bool, optional
        Whether to wait for the other ranks until aborted, because they may have other
        work to do first.
    device : int, optional
        The CUDA device of this rank, as this process numbers them. ``"gloo"`` uses
        none; ``"ucx"`` carries NumPy arrays alone without one.
    lifetime : Lifetime, optional
        Aborting it, from any thread, ends the connecting. A thread that is still held up in
        a library then is among its ``threads``.

    Raises
    ------
    CommError
        When the time is over, or the store or a rank is lost. What is made later is closed.
    CommAbortedError
        When ``lifetime`` was aborted.
    """
    if kind not in TRANSPORTS:
        raise ValueError(f"The transport is {kind!r} instead of one of {TRANSPORTS}.")
    attempt = Lifetime(threads=None if lifetime is None else lifetime.threads)
    if lifetime is not None:
        lifetime.adopt(attempt)

    def make() -> Comm:
        store = _join_store(store_address, name, timeout, attempt)
        meeting = None if patient else timeout
        meet(store, "connect", "", rank=rank, size=size, limit=meeting, lifetime=attempt)
        ranks = {"rank": rank, "size": size}
        if kind == "gloo":
            from dask_dgpu.comm.gloo import GlooComm

            return GlooComm(
                store, **ranks, host=host, timeout=timeout, limit=limit, lifetime=attempt
            )
        if kind == "ucx":
            return _ucx().join(
                store, **ranks, timeout=timeout, limit=limit, device=device, lifetime=attempt
            )
        from dask_dgpu.comm.nccl.communicator import NcclComm

        nccl: Comm = NcclComm(store, **ranks, device=device or 0, timeout=timeout, limit=limit)
        return nccl

    # the thread's own limit names the ranks that are missing, so it comes first
    late = None if patient else timeout + 1.0
    return _abandonable(make, attempt, late, f"Rank {rank}'s connection")


def _abandonable(
    make: Callable[[], Comm], attempt: Lifetime, limit: float | None, what: str
) -> Comm:
    """Connect in a thread that is left behind when the attempt ends before it.

    Libraries connect in calls that nothing but success or their own time limit ends. A
    communicator that comes out of them too late is closed.
    """
    made: list[Comm] = []
    errors: list[Exception] = []

    def connect_or_note() -> None:
        try:
            comm = make()
        except Exception as error:
            errors.append(error)
        else:
            with attempt.changed:
                made.append(comm)
            if attempt.reason is not None:
                comm.close()
        attempt.wake()

    # A daemon: it may be held up within a library. Whoever ends a process waits a while for it.
    thread = threading.Thread(target=connect_or_note, name="dgpu-connect", daemon=True)
    attempt.threads.add(thread)
    thread.start()
    try:
        attempt.wait_for(lambda: bool(made or errors), limit, what)
    except BaseException:
        attempt.abort(f"{what} was given up")
        with attempt.changed:
            late = list(made)
        for comm in late:
            comm.close()
        raise
    if errors:
        raise errors[0]
    return made[0]


def _ucx() -> Any:
    try:
        from dask_dgpu.comm.ucx import communicator as ucx
    except ImportError as error:
        raise CommError(
            f"The transport is 'ucx', which needs ucxx: pip install 'dask-dgpu[ucx]' ({error})"
        ) from error
    return ucx


def _join_store(address: tuple[str, int], name: str, timeout: float, attempt: Lifetime) -> Any:
    dist = _torch_distributed()
    late = time.monotonic() + timeout
    while True:
        attempt.check()
        seconds = min(_STORE_SECONDS, max(0.1, late - time.monotonic()))
        try:
            store = dist.TCPStore(
                *address,
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=seconds),
            )
        except RuntimeError as error:
            if time.monotonic() > late:
                raise CommError(f"No store answers at {address}: {error}") from error
            time.sleep(_PAUSE)
        else:
            store.set_timeout(timedelta(seconds=timeout))
            return dist.PrefixStore(name, store)


def _torch_distributed() -> Any:
    # Its stores are missing from its declared exports, hence no type.
    import torch.distributed

    return torch.distributed
