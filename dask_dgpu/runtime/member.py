"""A worker as a member of epochs: its device and its communicators."""

from __future__ import annotations

import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dask_dgpu.comm import bootstrap
from dask_dgpu.comm.lifetime import Lifetime
from dask_dgpu.comm.local import LocalHub
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.errors import CommAbortedError
from dask_dgpu.kernels.device import Device, HostDevice
from dask_dgpu.kernels.malloc import keep_small_memory

if TYPE_CHECKING:
    from dask_dgpu.comm.bootstrap import StoreServer, Transport

KEPT_STORES = 8
"""Stores of this many epochs are served; those of older ones have no members left."""


class Member:
    """The communicators of one worker, one an epoch, made on first use and kept.

    Parameters
    ----------
    kind : str
        ``"cpu"`` or ``"cuda"``.
    host : str
        The address under which other members reach this worker's host.
    threads : int
        How many blocks a CPU may work on at a time.
    """

    def __init__(self, kind: str, host: str, threads: int) -> None:
        self.kind = kind
        self.host = host
        self.threads = threads
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._comms: dict[str, Comm] = {}
        self._joining: dict[str, Lifetime] = {}
        self._left: set[str] = set()
        self._stores: list[StoreServer] = []
        self.connected = 0

    @property
    def device(self) -> Device:
        """The device, made on first use: only a worker that computes touches CUDA."""
        with self._making:
            return self._device

    @cached_property
    def _device(self) -> Device:
        if self.kind == "cuda":
            from dask_dgpu.kernels.cuda import CudaDevice

            return CudaDevice()
        keep_small_memory()
        return HostDevice(self.threads)

    def join(
        self,
        epoch: str,
        store: tuple[str, int],
        rank: int,
        size: int,
        transport: Transport,
        timeout: float,
    ) -> Comm:
        """Return the communicator of an epoch; all its members come here, in ticket order."""
        with self._lock:
            if epoch in self._comms:
                return self._comms[epoch]
            if epoch in self._left:
                raise CommAbortedError(f"epoch {epoch} is over")
            joining = self._joining[epoch] = Lifetime()
        try:
            comm = self._connect(
                joining, transport, rank=rank, size=size, name=epoch, store=store, timeout=timeout
            )
        finally:
            with self._lock:
                del self._joining[epoch]
        with self._lock:
            if joining.reason is None:
                self.connected += 1
                self._comms[epoch] = comm
                return comm
        comm.close()
        raise CommAbortedError(f"epoch {epoch} is over")

    def _connect(
        self,
        joining: Lifetime,
        transport: Transport,
        *,
        rank: int,
        size: int,
        name: str,
        store: tuple[str, int],
        timeout: float,
    ) -> Comm:
        if size == 1:
            return LocalHub(1, timeout).comms()[0]
        return bootstrap.connect(
            transport,
            host=self.host,
            store_address=(store[0], store[1]),
            rank=rank,
            size=size,
            name=name,
            timeout=timeout,
            device=0 if self.kind == "cuda" else None,
            lifetime=joining,
        )

    def leave(self, epoch: str, reason: str) -> None:
        """Abort the communicator of an epoch, now or as soon as it is made; never blocks."""
        with self._lock:
            self._left.add(epoch)
            comm = self._comms.pop(epoch, None)
            joining = self._joining.get(epoch)
        if joining is not None:
            joining.abort(reason)
        if comm is not None:
            comm.abort(reason)
            comm.close()

    def leave_all(self, reason: str) -> None:
        """Abort every communicator."""
        for epoch in [*self._comms, *self._joining]:
            self.leave(epoch, reason)

    def serve_store(self) -> tuple[str, int]:
        """Serve a store for a new epoch of which this worker is rank 0."""
        store = bootstrap.serve_store(self.host)
        self._stores = [*self._stores[1 - KEPT_STORES :], store]
        return store.host, store.port

    def describe(self) -> dict[str, Any]:
        """What is known without touching the device."""
        return {"kind": self.kind, "epochs": sorted(self._comms), "connected": self.connected}

    def examine(self) -> str:
        """Multiply something small on the device: ``"ok"``, or what is wrong.

        A program may be running there meanwhile.
        """
        device = self.device
        with device.computing():
            a = device.zeros((8, 8), "float64")
            a[...] = 1
            out = device.zeros((8, 8), "float64")
            device.accumulate(out, a, a)
            good = bool((device.to_host(out) == 8).all())
        return "ok" if good else "multiplies wrongly"
