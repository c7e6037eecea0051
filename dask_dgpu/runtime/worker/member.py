"""A worker as a member of epochs: its device and its communicators."""

from __future__ import annotations

import threading
from collections import deque
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from dask_dgpu.comm import bootstrap
from dask_dgpu.comm.lifetime import Lifetime
from dask_dgpu.comm.local import LocalComm
from dask_dgpu.comm.local_hub import LocalHub
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.errors import CommAbortedError
from dask_dgpu.kernels import gemm
from dask_dgpu.kernels.device import Device
from dask_dgpu.kernels.device.host import HostDevice
from dask_dgpu.kernels.device.malloc import keep_small_memory

if TYPE_CHECKING:
    from dask_dgpu.comm.bootstrap import StoreServer, Transport

REMEMBERED = 1000
"""Epochs that were left and whose messages may still arrive."""


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

    Attributes
    ----------
    connected : int
        How many communicators it has made.
    connecting : WeakSet of Thread
        The threads in which it connects; each ends soon after its epoch was left.
    """

    def __init__(self, kind: str, host: str, threads: int) -> None:
        self.kind = kind
        self.host = host
        self._cpu_threads = threads
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._comms: dict[str, Comm] = {}
        self._joining: dict[str, Lifetime] = {}
        self._left: deque[str] = deque(maxlen=REMEMBERED)
        self._stores: dict[str, StoreServer] = {}
        self._closed = False
        self.connected = 0
        self.connecting: WeakSet[threading.Thread] = WeakSet()

    @property
    def device(self) -> Device:
        """The device, made on first use: only a worker that computes touches CUDA."""
        with self._making:
            return self._device

    @cached_property
    def _device(self) -> Device:
        if self.kind == "cuda":
            from dask_dgpu.kernels.device.cuda import CudaDevice

            return CudaDevice()
        keep_small_memory()
        return HostDevice(self._cpu_threads)

    def join(
        self,
        epoch: str,
        store: tuple[str, int],
        rank: int,
        size: int,
        transport: Transport,
        timeout: float,
        patient: bool = False,
    ) -> Comm:
        """Return the communicator of an epoch; all its members come here, in ticket order.

        Parameters
        ----------
        epoch : str
            Its name.
        store : tuple of str and int
            Where its members meet.
        rank, size : int
            Which member of how many this is.
        transport : {"gloo", "nccl", "ucx"}
            What carries blocks.
        timeout : float
            Seconds to wait for the other members, and to connect with them.
        patient : bool, optional
            Whether to wait for the other members as long as it takes: the scheduler
            watches a run, and has its members leave if it stands still.

        Raises
        ------
        CommAbortedError
            When this worker has left the epoch.
        CommError
            When connecting fails. Then it has left the epoch: its store knows this attempt.
        """
        with self._lock:
            if epoch in self._comms:
                return self._comms[epoch]
            self._check(epoch)
            joining = self._joining[epoch] = Lifetime(threads=self.connecting)
        comm: Comm | None = None
        try:
            if size == 1:
                comm = LocalComm(LocalHub(1), 0)
            else:
                comm = bootstrap.connect(
                    transport,
                    host=self.host,
                    store_address=(store[0], store[1]),
                    rank=rank,
                    size=size,
                    name=epoch,
                    timeout=timeout,
                    patient=patient,
                    device=0 if self.kind == "cuda" else None,
                    lifetime=joining,
                )
        finally:
            with self._lock:
                del self._joining[epoch]
                if comm is None:
                    self._left.append(epoch)
                elif joining.reason is None:
                    self.connected += 1
                    self._comms[epoch] = comm
        if joining.reason is not None:
            comm.close()
            self._check(epoch)
        return comm

    def has_left(self, epoch: str) -> bool:
        """Whether an epoch is over for this worker."""
        return self._closed or epoch in self._left

    def _check(self, epoch: str) -> None:
        if self.has_left(epoch):
            raise CommAbortedError(f"epoch {epoch} is over")

    def leave(self, epoch: str, reason: str) -> None:
        """End the communicator of an epoch, now or as soon as it is made; never blocks."""
        with self._lock:
            self._left.append(epoch)
            comm = self._comms.pop(epoch, None)
            joining = self._joining.get(epoch)
            self._stores.pop(epoch, None)
        if joining is not None:
            joining.abort(reason)
        if comm is not None:
            comm.abort(reason)
            comm.close()

    def close(self, reason: str) -> None:
        """Leave every epoch, those to come too; never blocks."""
        self._closed = True
        with self._lock:
            epochs = {*self._comms, *self._joining, *self._stores}
        for epoch in epochs:
            self.leave(epoch, reason)

    def serve_store(self, epoch: str) -> tuple[str, int]:
        """Serve the store of a new epoch of which this worker is rank 0, until it leaves."""
        store = bootstrap.serve_store(self.host)
        with self._lock:
            if not self.has_left(epoch):
                self._stores[epoch] = store
        return store.host, store.port

    def describe(self) -> dict[str, Any]:
        """What is known without touching the device."""
        with self._lock:
            epochs, stores = sorted(self._comms), sorted(self._stores)
        return {
            "kind": self.kind,
            "epochs": epochs,
            "stores": stores,
            "connected": self.connected,
        }

    def examine(self) -> str:
        """Multiply something small on the device: ``"ok"``, or what is wrong.

        A program may be running there meanwhile.
        """
        device = self.device
        with device.computing():
            a = device.zeros((8, 8), "float64")
            a[...] = 1
            out = device.zeros((8, 8), "float64")
            gemm.accumulate(out, a, a)
            good = bool((device.to_host(out) == 8).all())
        return "ok" if good else "multiplies wrongly"
