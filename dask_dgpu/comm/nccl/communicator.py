"""Ranks as processes with CuPy arrays, over NCCL.

The module creates torch's NCCL group directly, so the default group of ``torch.distributed`` is
not affected, and binds it to a device: torch's ``barrier`` and lazy connection guess the device
from the rank, which is wrong if every process sees one GPU.

Streams order everything. A call starts on NCCL's stream after the pending work of the caller's
CuPy stream; ``wait`` makes the caller's stream wait for the call and does not block the host. NCCL
does not notice a lost peer: an abort from outside ends the waits of host and streams. torch's own
watchdog would end the process after its limit (unless ``TORCH_NCCL_ASYNC_ERROR_HANDLING`` says
otherwise), so its limit never passes.
"""

# The protocol documents the methods.
# ruff: noqa: D102

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any
from weakref import WeakSet

import cupy
import numpy as np
import torch
import torch.distributed

from dask_dgpu.comm.common import (
    Lifetime,
    as_bytes,
    check_peers,
    check_reduction,
    flat,
    own_messages,
    reduce_parts,
)
from dask_dgpu.comm.nccl.window import Mappings, open_window
from dask_dgpu.comm.protocol import (
    Buffer,
    Messages,
    Recording,
    Reduction,
    Window,
    Work,
)
from dask_dgpu.comm.store import Store
from dask_dgpu.comm.torch_store import TorchStore
from dask_dgpu.errors import CommError
from dask_dgpu.torch_streams import torch_stream

# torch has no stubs for much of this, or stubs that vary from version to version.
dist: Any = torch.distributed
torch_cuda: Any = torch.cuda

NATIVE = {np.dtype(t) for t in ("u1", "i1", "i4", "i8", "f2", "f4", "f8")}
"""The dtypes that NCCL reduces."""

_NEVER = timedelta(days=365)

_INTERVAL = 0.2
"""Seconds between two looks whether the GPU has finished, before a close."""

_CALL_SECONDS = 0.5
"""Seconds for a call to return before an abort; one that connects to a lost peer ends by it."""


class NcclComm:
    """One rank over NCCL; see :class:`~dask_dgpu.comm.protocol.Comm`.

    All ranks create it at the same time, with a ``store`` for these ranks only. Connecting ends
    after ``timeout`` seconds, or if ``lifetime`` is aborted while it waits for the store. Closing
    waits for the GPU, at most ``timeout`` seconds.
    """

    def __init__(
        self,
        store: Store,
        *,
        rank: int,
        size: int,
        device: int,
        timeout: float,
        lifetime: Lifetime | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self._store = store
        self._issuing = threading.Lock()  # held by a call, and by an abort
        self._device = torch.device("cuda", device)
        self._lifetime = Lifetime(self._start_to_abort)
        self._mappings = Mappings()
        self._recordings: WeakSet[Recording] = WeakSet()
        self._torch_store = TorchStore(store, timeout, lifetime or self._lifetime)
        # with it, ranks that record would have to do so together
        os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = _NEVER
        options.is_high_priority_stream = True  # other ranks wait for transfers
        try:
            self._group: Any = dist.ProcessGroupNCCL(self._torch_store, rank, size, options)
            self._group.eager_connect_single_device(self._device)
        except RuntimeError as error:
            raise CommError(f"rank {rank} of {size} could not connect: {error}") from error
        self._torch_store.lifetime = self._lifetime
        with cupy.cuda.Device(device):
            self._last_wait = cupy.cuda.Event(disable_timing=True)

    def exchange(self, sends: Messages, recvs: Messages) -> NcclWork:
        check_peers([peer for peer, _ in (*sends, *recvs)], self.size)
        own = own_messages(self.rank, sends, recvs)
        others = [
            (post, peer, as_bytes(buffer))
            for post, batch in (("send", sends), ("recv", recvs))
            for peer, buffer in batch
            if peer != self.rank and buffer.size
        ]

        def start() -> Any:
            for source, target in own:
                target[...] = source
            return self._posted(others) if others else None

        return self._start("exchange", start, (sends, recvs))

    def all_reduce(self, buffer: Buffer, op: Reduction = "sum") -> Work:
        check_reduction(buffer, op)
        target = flat(buffer)
        native = native_form(op, target)
        if native is None:
            received = cupy.empty((self.size, target.size), target.dtype)
            sends = [(peer, target) for peer in range(self.size)]
            work = self.exchange(sends, list(enumerate(received)))
            work.then = lambda: reduce_parts(target, list(received), op)
            return work
        options = dist.AllreduceOptions()
        options.reduceOp, given = native
        return self._start(
            "all_reduce",
            lambda: self._group.allreduce([self._tensor(given[0])], options),
            given,
        )

    def barrier(self) -> None:
        with cupy.cuda.Device(self._device.index):
            self.all_reduce(cupy.zeros(1, np.int32)).wait()
            cupy.cuda.get_current_stream().synchronize()
        self._lifetime.check()

    def window(self, buffers: Sequence[Buffer]) -> Window | None:
        self._lifetime.check()
        return open_window(self, self._mappings, buffers)

    def check(self) -> None:
        self._lifetime.check()

    def hold(self, recording: Recording) -> None:
        self._recordings.add(recording)
        if self._lifetime.reason is not None:
            recording.end()
        self._lifetime.check()

    def launched(self) -> None:
        self._note_wait()

    def abort(self, reason: str) -> None:
        self._lifetime.abort(reason)

    def close(self) -> None:
        self._lifetime.close()

    def _start_to_abort(self) -> None:
        for recording in list(self._recordings):
            recording.ended = True
        # No daemon: an exiting interpreter that stops one within NCCL ends the process.
        threading.Thread(target=self._end, name="nccl-abort", daemon=False).start()

    def _end(self) -> None:
        """Abort the group between calls; after a close, wait for the GPU first."""
        late = time.monotonic() + self.timeout
        while self._lifetime.closed and not self._last_wait.done and time.monotonic() < late:
            time.sleep(_INTERVAL)
        for recording in list(self._recordings):
            recording.end()  # NCCL waits for the end of those that have its calls
        returned = self._issuing.acquire(timeout=_CALL_SECONDS)
        try:
            self._group.abort()
        finally:
            if returned:
                self._issuing.release()
        with cupy.cuda.Device(self._device.index):
            self._mappings.close()

    def _start(self, name: str, start: Callable[[], Any], kept: Any) -> NcclWork:
        with self._issuing, self._calling_torch(name):
            self._lifetime.check()
            work = start()
        return NcclWork(self, name, work, kept)

    def _posted(self, messages: Sequence[tuple[str, int, Buffer]]) -> Any:
        """Post messages as one group of NCCL's, and end it even if one cannot be posted.

        A group is the thread's: left open, it would hold back calls on later communicators.
        """
        self._group._start_coalescing()
        try:
            for post, peer, data in messages:
                getattr(self._group, post)([self._tensor(data)], peer, 0)
        except BaseException:
            with suppress(RuntimeError):  # the first error tells more
                self._group._end_coalescing()
            raise
        return self._group._end_coalescing()

    def _order(self, work: Any, name: str) -> None:
        """Let the caller's stream wait for ``work``, and a close for the stream."""
        self._lifetime.check()
        if work is None:
            return
        with self._calling_torch(name):
            work.wait()
        with cupy.cuda.Device(self._device.index):
            self._note_wait()

    def _note_wait(self) -> None:
        """Let a close wait for the current stream, unless it is recorded."""
        if not cupy.cuda.runtime.streamIsCapturing(cupy.cuda.get_current_stream().ptr):
            self._last_wait.record()

    @contextmanager
    def _calling_torch(self, name: str) -> Iterator[None]:
        """Make the caller's stream torch's, and convert torch's errors."""
        try:
            index = self._device.index
            with cupy.cuda.Device(index):
                before = torch_cuda.current_stream(index)  # torch's own context takes 20 us more
                torch_cuda.set_stream(torch_stream(cupy.cuda.get_current_stream().ptr, index))
                try:
                    yield
                finally:
                    torch_cuda.set_stream(before)
        except RuntimeError as error:
            self._lifetime.check()
            raise CommError(f"{name} on rank {self.rank} failed: {error}") from error

    def _tensor(self, buffer: Buffer) -> torch.Tensor:
        """View a flat array as a tensor."""
        if not buffer.size:  # torch refuses its null pointer
            dtype = getattr(torch, buffer.dtype.name)
            return torch.empty(0, dtype=dtype, device=self._device)
        if buffer.device.id != self._device.index:
            raise ValueError(
                f"expected a buffer on CUDA device {self._device.index}, got {buffer.device.id}"
            )
        return torch.as_tensor(buffer, device=self._device)


class NcclWork:
    """A transfer on NCCL's stream; the first wait continues with ``then`` on the caller's."""

    ended: float | None = None  # only the GPU knows
    then: Callable[[], None] | None = None

    def __init__(self, comm: NcclComm, name: str, work: Any, kept: Any) -> None:
        self._comm = comm
        self._name = name
        self._work = work
        self._kept = kept  # NCCL may use the buffers until the wait

    def wait(self) -> None:
        """Make the caller's stream, not the host, wait for the transfer."""
        self._comm._order(self._work, self._name)
        then, self.then = self.then, None
        self._work = self._kept = None
        if then is not None:
            then()

    def follow(self) -> None:
        """Make the current stream wait too; the buffers still belong to the transfer."""
        if self._work is not None:
            with self._comm._calling_torch(self._name):
                self._work.wait()


def native_form(op: Reduction, *buffers: Buffer) -> tuple[Any, list[Buffer]] | None:
    """Return NCCL's reduction and views of the buffers, ``None`` if NCCL has none.

    Dtypes that NCCL lacks are viewed as others that it has.
    """
    dtype = buffers[0].dtype
    if dtype.kind == "b":
        logical = {"sum": dist.ReduceOp.MAX, "max": dist.ReduceOp.MAX}
        return logical.get(op, dist.ReduceOp.MIN), [as_bytes(b) for b in buffers]
    if dtype.kind == "c":
        half = np.dtype(f"f{dtype.itemsize // 2}")
        return dist.ReduceOp.SUM, [b.view(half) for b in buffers]
    if dtype.kind == "u" and dtype.itemsize >= 4 and op == "sum":
        signed = np.dtype(f"i{dtype.itemsize}")
        return dist.ReduceOp.SUM, [b.view(signed) for b in buffers]
    if dtype not in NATIVE:
        return None
    name = {"sum": "SUM", "min": "MIN", "max": "MAX"}[op]
    return getattr(dist.ReduceOp, name), list(buffers)
