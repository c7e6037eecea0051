"""Connecting ranks in different processes.

One process serves a store. Every rank connects to it under the same name and gets its
:class:`~dask_dgpu.comm.protocol.Comm`. This module does not use the default group of
``torch.distributed``, and imports torch only on first use.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from dask_dgpu.comm.common import Lifetime, meet
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.errors import CommError

Transport = Literal["gloo", "nccl", "ucx"]

#: The transports of :func:`connect`.
TRANSPORTS: tuple[Transport, ...] = ("gloo", "nccl", "ucx")

# Seconds of one attempt to connect to a store, which cannot be aborted.
_STORE_SECONDS = 2.0
_PAUSE = 0.05


@dataclass(frozen=True)
class StoreServer:
    """A store that is served on ``host`` and ``port`` during the life of this object."""

    host: str
    port: int
    _store: Any = field(repr=False, compare=False)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, as :func:`connect` expects them."""
        return self.host, self.port


def serve_store(host: str) -> StoreServer:
    """Serve a store on a free port of ``host``, the address or name of this host for ranks."""
    dist = _torch_distributed()
    try:
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    except RuntimeError as error:
        raise CommError(f"could not serve a store on {host!r}: {error}") from error
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
    """Connect with the other ranks under ``name``; returns when all have connected.

    - ``host`` is the address or name of this rank's host, ``name`` is used once per store.
    - Other ranks are awaited for ``timeout`` seconds, if ``patient`` until aborted: they may be
      busy.
    - A later wait raises after ``limit`` seconds. By default it lasts until the communicator is
      aborted, from outside or because a peer is lost.
    - ``device`` is this rank's CUDA device, in this process's numbering. Without it, ``"ucx"`` only
      carries NumPy arrays; ``"gloo"`` never carries others.
    - Aborting ``lifetime``, from any thread, ends the connecting. Its ``threads`` then include a
      thread that is still blocked in a library.

    Raises
    ------
    CommError
        If the time is over, or the store or a rank is lost. A communicator that is created
        later is closed.
    CommAbortedError
        If ``lifetime`` was aborted.
    """
    if kind not in TRANSPORTS:
        raise ValueError(f"expected a transport of {TRANSPORTS}, got {kind!r}")
    attempt = Lifetime(threads=None if lifetime is None else lifetime.threads)
    if lifetime is not None:
        lifetime.adopt(attempt)

    def create() -> Comm:
        store = _join_store(store_address, name, timeout, attempt)
        ranks = {"rank": rank, "size": size}
        meet(store, "connect", "", **ranks, limit=None if patient else timeout, lifetime=attempt)
        if kind == "gloo":
            from dask_dgpu.comm.gloo import GlooComm

            return GlooComm(
                store, **ranks, host=host, timeout=timeout, limit=limit, lifetime=attempt
            )
        if kind == "ucx":
            return _import_ucx().join(
                store, **ranks, timeout=timeout, limit=limit, device=device, lifetime=attempt
            )
        from dask_dgpu.comm.nccl.communicator import NcclComm

        nccl: Comm = NcclComm(store, **ranks, device=device or 0, timeout=timeout, limit=limit)
        return nccl

    # the thread's own error, which names the missing ranks, comes first
    late = None if patient else timeout + 1.0
    return _abandonable(create, attempt, late, f"rank {rank}'s connection")


def _abandonable(
    create: Callable[[], Comm], attempt: Lifetime, limit: float | None, what: str
) -> Comm:
    """Connect in a thread, which is abandoned if the attempt ends first.

    Only success or a library's own time limit ends its calls to connect. A communicator that is
    created too late is closed.
    """
    created: list[Comm] = []
    errors: list[Exception] = []

    def connect_or_note() -> None:
        try:
            comm = create()
        except Exception as error:
            errors.append(error)
        else:
            with attempt.changed:
                created.append(comm)
            if attempt.reason is not None:
                comm.close()
        attempt.wake()

    # A daemon: it may block within a library. The end of a worker waits a while for it.
    thread = threading.Thread(target=connect_or_note, name="dgpu-connect", daemon=True)
    attempt.threads.add(thread)
    thread.start()
    try:
        attempt.wait_for(lambda: bool(created or errors), limit, what)
    except BaseException:
        attempt.abort(f"{what} was abandoned")
        with attempt.changed:
            late = list(created)
        for comm in late:
            comm.close()
        raise
    if errors:
        raise errors[0]
    return created[0]


def _import_ucx() -> Any:
    try:
        from dask_dgpu.comm.ucx import communicator as ucx
    except ImportError as error:
        raise CommError(
            f"the transport 'ucx' needs ucxx: pip install 'dask-dgpu[ucx]' ({error})"
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
                raise CommError(f"no store answers at {address}: {error}") from error
            time.sleep(_PAUSE)
        else:
            store.set_timeout(timedelta(seconds=timeout))
            return dist.PrefixStore(name, store)


def _torch_distributed() -> Any:
    # untyped, because its declared exports lack the stores
    import torch.distributed

    return torch.distributed
