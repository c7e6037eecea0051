"""A worker as a member of epochs: its device and its communicators."""

from __future__ import annotations

import gc
import threading
from collections import deque
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from dask_dgpu.comm import bootstrap
from dask_dgpu.comm.common import Lifetime
from dask_dgpu.comm.local import LocalComm, LocalHub
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.comm.store import Store
from dask_dgpu.errors import CommAbortedError
from dask_dgpu.kernels import gemm
from dask_dgpu.kernels.device import Device
from dask_dgpu.kernels.device.host import HostDevice, keep_small_memory
from dask_dgpu.runtime.installed import installed_here
from dask_dgpu.runtime.worker.links import Links, accept

if TYPE_CHECKING:
    from distributed.comm.core import Comm as Connection
    from distributed.core import Status

    from dask_dgpu.comm.bootstrap import Transport

REMEMBERED = 1000
"""Number of past epochs that are remembered, because late messages may name them."""


class Member:
    """The device of a worker and its communicators, one per epoch, created on first use.

    ``kind`` is ``"cpu"`` or ``"cuda"``, ``host`` the address of this worker's host for other
    members, ``threads`` the number of blocks that a CPU processes at a time. ``share`` passes
    ``epoch``, ``key`` and ``value`` to the other members of the epoch, whose :meth:`receive` gets
    them. ``link`` creates the links of an epoch, given a time limit to connect.
    """

    def __init__(
        self,
        kind: str,
        host: str,
        threads: int,
        share: Callable[..., None],
        link: Callable[[str, float], Links] | None = None,
    ) -> None:
        self.kind = kind
        self.host = host
        self._cpu_threads = threads
        self._share = share
        self._link = link
        self.links: dict[str, Links] = {}  # of the transport ``dask``, by epoch
        self._lock = threading.Lock()
        self._device_lock = threading.Lock()
        self._comms: dict[str, Comm] = {}
        self._joining: dict[str, Lifetime] = {}
        self._left: deque[str] = deque(maxlen=REMEMBERED)
        self._stores: dict[str, Store] = {}
        self._closed = False
        self.connected = 0  # communicators created so far
        # connecting threads; each ends soon after this worker leaves its epoch
        self.connecting: WeakSet[threading.Thread] = WeakSet()

    @property
    def device(self) -> Device:
        """The device, created on first use: only a worker that computes initializes CUDA."""
        with self._device_lock:
            return self._device

    @cached_property
    def _device(self) -> Device:
        if self.kind == "cuda":
            from dask_dgpu.kernels.device.cuda import CudaDevice

            return CudaDevice()
        keep_small_memory()
        return HostDevice(self._cpu_threads)

    def release(self) -> None:
        """Free the memory that the device keeps between programs; none may run."""
        gc.collect()  # frames of errors may hold arrays
        if "_device" in vars(self):
            self._device.release()

    def join(
        self,
        epoch: str,
        rank: int,
        size: int,
        transport: Transport,
        timeout: float,
        ports: tuple[int, int] | None = None,
        patient: bool = False,
    ) -> Comm:
        """Return the communicator of an epoch; all its members call this, in the order of launches.

        With ``patient``, other members are awaited without a limit: the scheduler watches a run,
        and makes its members leave if it makes no progress.

        Raises
        ------
        CommAbortedError
            If this worker has left the epoch.
        CommError
            If connecting fails. This worker then leaves the epoch: it allows one attempt.
        """
        with self._lock:
            if epoch in self._comms:
                return self._comms[epoch]
            self._check(epoch)
            joining = self._joining[epoch] = Lifetime(threads=self.connecting)
            store = self._store(epoch)
            if transport == "dask" and self._link is not None:
                self.links[epoch] = self._link(epoch, timeout)
            streams = self.links.get(epoch)
        comm: Comm | None = None
        try:
            if size == 1:
                comm = LocalComm(LocalHub(1), 0)
            else:
                comm = bootstrap.connect(
                    transport,
                    host=self.host,
                    store=store,
                    rank=rank,
                    size=size,
                    timeout=timeout,
                    patient=patient,
                    device=0 if self.kind == "cuda" else None,
                    ports=ports,
                    streams=streams,
                    lifetime=joining,
                )
        finally:
            with self._lock:
                del self._joining[epoch]
                if comm is None:
                    self._left.append(epoch)
                    self._stores.pop(epoch, None)
                    self.links.pop(epoch, None)
                elif joining.reason is None:
                    self.connected += 1
                    self._comms[epoch] = comm
        if joining.reason is not None:
            comm.close()
            self._check(epoch)
        return comm

    def has_left(self, epoch: str) -> bool:
        """Return whether an epoch is over for this worker."""
        return self._closed or epoch in self._left

    def _check(self, epoch: str) -> None:
        if self.has_left(epoch):
            raise CommAbortedError(f"epoch {epoch} is over")

    def leave(self, epoch: str, reason: str) -> None:
        """End the communicator of an epoch, now or once it is created; never blocks."""
        with self._lock:
            self._left.append(epoch)
            comm = self._comms.pop(epoch, None)
            joining = self._joining.get(epoch)
            self._stores.pop(epoch, None)
            self.links.pop(epoch, None)
        if joining is not None:
            joining.abort(reason)
        if comm is not None:
            comm.abort(reason)
            comm.close()

    def close(self, reason: str) -> None:
        """Leave all epochs, later ones too; never blocks."""
        self._closed = True
        with self._lock:
            epochs = {*self._comms, *self._joining, *self._stores}
        for epoch in epochs:
            self.leave(epoch, reason)

    def receive(self, epoch: str, key: str, value: bytes) -> None:
        """Note a value of an epoch's store, which this worker may join later; never blocks."""
        with self._lock:
            store = None if self.has_left(epoch) else self._store(epoch)
        if store is not None:
            store.receive(key, value)

    async def accept(self, comm: Connection, epoch: str, rank: int) -> Status:
        """Serve a link that a member has opened, until it ends."""
        return await accept(self.links, comm, epoch, rank)

    def _store(self, epoch: str) -> Store:
        """Return the store of an epoch; the caller has the lock."""
        if epoch not in self._stores:
            share = self._share
            self._stores[epoch] = Store(lambda key, value: share(epoch=epoch, key=key, value=value))
        return self._stores[epoch]

    def describe(self) -> dict[str, Any]:
        """Return what is known without the device."""
        with self._lock:
            epochs, stores = sorted(self._comms), sorted(self._stores)
        return {
            "kind": self.kind,
            "epochs": epochs,
            "stores": stores,
            "connected": self.connected,
        }

    def health(self) -> tuple[str, dict[str, str | None]]:
        """Return what :meth:`examine` does, and the versions of packages."""
        return self.examine(), installed_here()

    def examine(self) -> str:
        """Test a small product on the device, beside programs; return ``"ok"`` or the fault."""
        device = self.device
        with device.computing():
            a = device.zeros((8, 8), "float64")
            a[...] = 1
            out = device.zeros((8, 8), "float64")
            gemm.accumulate(out, a, a)
            good = bool((device.to_host(out) == 8).all())
        return "ok" if good else "multiplies wrongly"
