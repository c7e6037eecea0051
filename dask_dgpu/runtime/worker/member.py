"""A worker as a rank: its device and communicators, its jobs, and the programs it keeps."""

from __future__ import annotations

import gc
import math
import pickle
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

from distributed.utils import set_thread_state
from distributed.worker import _worker_cvar
from zict import LRU

from dask_dgpu.comm import bootstrap
from dask_dgpu.comm.common import Lifetime
from dask_dgpu.comm.local import LocalComm, LocalHub
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.comm.store import Store
from dask_dgpu.errors import CommAbortedError, DgpuError
from dask_dgpu.kernels import gemm
from dask_dgpu.kernels.device import Device, HostDevice
from dask_dgpu.kernels.device.host import keep_small_memory
from dask_dgpu.operations.operation import Blocks
from dask_dgpu.runtime.execute import Observer, Span
from dask_dgpu.runtime.failure import IN_PROGRAM
from dask_dgpu.runtime.installed import installed_here
from dask_dgpu.runtime.plans import Plans
from dask_dgpu.runtime.prepared import Prepared, prepared
from dask_dgpu.runtime.program import opened
from dask_dgpu.runtime.worker.links import Links, accept
from graph_opt.model.names import label

if TYPE_CHECKING:
    from distributed.comm.core import Comm as Connection
    from distributed.core import Status
    from distributed.worker import Worker

    from dask_dgpu.comm.bootstrap import Transport

Array = Any
Key = Any


MOST_SPANS = 1000
"""Number of steps of a run that are reported: the first."""


class GaveUpError(DgpuError):
    """The scheduler gave up a run while this rank was running it."""


class InStep(NamedTuple):
    """The phase of a rank within a step."""

    step: str
    done: int
    steps: int

    def __str__(self) -> str:
        return f"{IN_PROGRAM} ({label(self.step)}, {self.done} of {self.steps})"


@dataclass
class Job(Observer):
    """One program to run as one rank; it observes the run.

    ``blocks`` are the inputs, taken ``in_memory`` of the worker or from ``stage`` tasks. ``outs``
    are blocks of the result, with the keys of their ``out`` tasks. A worker that ``holds`` the
    ``gang`` task stores its result. Somebody may have the run ``profiled``. Its values have
    these ``names``, and its text these ``tokens``. The scheduler sends its ``text`` and ``plans``
    if the worker may lack them, or once it has asked for them. A program out of memory is
    ``tried`` again.
    """

    worker: Worker
    key: Key
    run_id: int
    rank: int
    size: int
    epoch: str
    digest: bytes
    tokens: bytes
    names: Sequence[str]
    blocks: list[Blocks]
    outs: list[tuple[Key, Key]]
    in_memory: bool
    holds: bool
    profiled: bool = False
    tried: tuple[str, int, int] | None = None
    text: bytes = b""
    plans: bytes = b""
    given_up: threading.Event = field(default_factory=threading.Event)
    arrived: threading.Event = field(default_factory=threading.Event)
    phase: str | InStep = "queued"
    done: int = 0
    calls: set[int] = field(default_factory=set)
    spans: list[Span] = field(default_factory=list)
    details: dict[str, bytes] = field(default_factory=dict)
    steps: int = 0

    @property
    def report(self) -> dict[str, Any]:
        """The progress, and whether a user's function is running."""
        return {
            "key": self.key,
            "run_id": self.run_id,
            "phase": str(self.phase),
            "done": self.done,
            "calling": bool(self.calls),
            "steps": self.steps,
        }

    def now(self) -> float:
        """Return the time, by the scheduler's clock."""
        return time() + self._delay

    @cached_property
    def _delay(self) -> float:
        """The delay of the scheduler's clock, one for the whole run: estimates of it change."""
        return self.worker.scheduler_delay

    def give_up(self) -> None:
        """Let the run end soon."""
        self.given_up.set()
        self.arrived.set()

    def receive(self, text: bytes, plans: bytes) -> None:
        """Take the program that this worker has asked for."""
        self.text, self.plans = text, plans
        self.arrived.set()

    def progress(self, step: str, done: int, steps: int) -> None:
        """Note the progress; raise if the run was given up."""
        self.done += 1
        self.phase = InStep(step, done, steps)
        if self.given_up.is_set():
            raise GaveUpError("the run was given up")

    def detail(self, output: str, detail: Any) -> None:
        """Keep a detail for the scheduler, which may lack its package."""
        if self.rank == 0:
            self.details[output] = pickle.dumps(detail)

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Let a block function find its worker as in a task, and run without a time limit."""
        thread = threading.get_ident()
        state = {"worker": self.worker, "stimulus_id": f"dgpu-run-{self.run_id}"}
        token = _worker_cvar.set(self.worker)
        self.calls.add(thread)
        try:
            with set_thread_state(execution_state=state):
                yield
        finally:
            self.calls.discard(thread)
            _worker_cvar.reset(token)

    @contextmanager
    def step(self, name: str, action: str) -> Iterator[Span]:
        """Time a step, also one that fails.

        Yields
        ------
        Span
            The step's.
        """
        span = Span(name, action, self.now())
        self.spans.append(span)
        try:
            yield span
        finally:
            span.stop = self.now()
        self.steps += 1


OPENED = 16
"""Bytes of an opened and prepared program for each byte of its text: 10 to 19 were measured."""


class Kept:
    """A program and its plans, opened for the tokens and the rank of the last run."""

    def __init__(self, text: bytes, plans: bytes) -> None:
        self._text = text
        self._plans: Plans = pickle.loads(plans)
        self._opened: dict[tuple[bytes, int], Prepared] = {}
        self.nbytes = OPENED * (len(text) + len(plans))

    def prepared(self, tokens: bytes, rank: int, kind: str) -> Prepared:
        """Return what a rank does; functions depend on the tokens."""
        known = self._opened.get((tokens, rank))
        if known is None:
            known = prepared(opened(self._text, tokens), self._plans, rank, kind)
            self._opened = {(tokens, rank): known}
        return known


class Programs:
    """The last programs of a rank, by their digests; only its program thread calls this.

    They are prepared for a ``kind`` of device.
    """

    def __init__(self, kind: str = "cpu") -> None:
        self._kind = kind
        self._kept: LRU[bytes, Kept] = LRU(math.inf, {}, weight=lambda _, kept: kept.nbytes)

    def __len__(self) -> int:
        return len(self._kept)

    def opened(self, job: Job, ask: Callable[[], None]) -> Prepared:
        """Return what the rank of a job does; ``ask`` for a program that is neither kept nor sent.

        Raises
        ------
        GaveUpError
            If the run is given up before the program arrives.
        """
        if job.digest not in self._kept:
            if not job.text:
                job.phase = "ask for the program"
                ask()
                job.arrived.wait()
            if not job.text:
                raise GaveUpError("the run was given up")
            self._kept[job.digest] = Kept(job.text, job.plans)
        job.receive(b"", b"")  # it is opened
        prepared = self._kept[job.digest].prepared(job.tokens, job.rank, self._kind)
        self.shrink(prepared.program.limits.kept_programs)
        return prepared

    def shrink(self, limit: int) -> None:
        """Forget the programs that were used first, until the others take at most these bytes."""
        self._kept.evict_until_below_target(limit)


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
                self._import_torch()
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

    def _import_torch(self) -> None:
        """Import torch meanwhile, as NCCL does for several ranks: recordings multiply by it."""
        if self.kind == "cuda" and "torch" not in sys.modules:
            thread = threading.Thread(target=import_module, args=("torch",), daemon=True)
            self.connecting.add(thread)
            thread.start()

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
