"""Ranks as processes with CuPy arrays, over NCCL.

torch's NCCL group is made directly, beside the default group of
``torch.distributed``, and bound to a device: its own ``barrier`` and lazy
connection guess the device from the rank, which is wrong where every process
sees one GPU.

Everything is ordered by streams. A call starts on NCCL's stream behind what the
caller's CuPy stream holds; ``wait`` puts the caller's stream behind the call and
does not stop the host. NCCL does not notice a lost peer: an abort from outside
ends the waits of host and streams. With a time limit, a watcher aborts when a
stream has not passed a ``wait`` in time. torch's own watchdog ends the process
when its limit passes (unless ``TORCH_NCCL_ASYNC_ERROR_HANDLING`` says
otherwise), so it gets one that never passes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import cupy
import numpy as np
import torch
import torch.distributed

from dask_dgpu.comm.buffers import (
    as_bytes,
    check_all_to_all,
    check_gather,
    check_peers,
    check_reduction,
    flat,
    pieces,
    reduce_parts,
)
from dask_dgpu.comm.lifetime import Lifetime
from dask_dgpu.comm.nccl.marks import Marks
from dask_dgpu.comm.nccl.reduction import native_form
from dask_dgpu.comm.nccl.stream import current_stream
from dask_dgpu.comm.nccl.window import Mappings, open_window
from dask_dgpu.comm.nccl.work import DeferredWork, NcclWork
from dask_dgpu.comm.protocol import Buffer, Reduction, Window, Work
from dask_dgpu.comm.rendezvous import KeyValueStore, meet_to_split
from dask_dgpu.errors import CommError

# Much of what is used here has no stubs, or other stubs from version to version.
dist: Any = torch.distributed

_NEVER = timedelta(days=365)


class NcclComm:
    """One rank over NCCL; see :class:`~dask_dgpu.comm.protocol.Comm`.

    Parameters
    ----------
    store : torch.distributed.Store
        The store of these ranks alone: a prefix used once.
    rank, size : int
        Which rank of how many this is. All of them make theirs at the same time.
    device : int
        The CUDA device of this rank, as this process numbers them.
    timeout : float
        Seconds that closing waits for the GPU.
    limit : float, optional
        Seconds after which a wait counts as failed; without it a wait lasts until aborted.
    """

    def __init__(
        self,
        store: KeyValueStore,
        *,
        rank: int,
        size: int,
        device: int,
        timeout: float,
        limit: float | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self.limit = limit
        self._store = store
        self._splits = 0
        self._closing = False
        self._device = torch.device("cuda", device)
        self._lifetime = Lifetime(self._start_to_abort)
        self._children: list[NcclComm] = []
        self._mappings = Mappings()
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = _NEVER
        options.is_high_priority_stream = True  # what others wait for, before what they do not
        try:
            self._group: Any = dist.ProcessGroupNCCL(store, rank, size, options)
            self._group.eager_connect_single_device(self._device)
        except RuntimeError as error:
            raise CommError(f"Rank {rank} of {size} could not join: {error}") from error
        self._marks = Marks(self._lifetime, limit)

    def exchange(
        self,
        sends: Sequence[tuple[int, Buffer]],
        recvs: Sequence[tuple[int, Buffer]],
    ) -> Work:
        """Send and receive a batch of messages, point to point."""
        check_peers([peer for peer, _ in (*sends, *recvs)], self.size)
        kept = [flat(buffer) for peer, buffer in sends if peer == self.rank]
        wanted = [flat(buffer) for peer, buffer in recvs if peer == self.rank]
        if [b.size for b in kept] != [b.size for b in wanted]:
            raise ValueError("A message to oneself is not received in its own batch.")
        others = [
            (post, peer, as_bytes(buffer))
            for post, batch in (("send", sends), ("recv", recvs))
            for peer, buffer in batch
            if peer != self.rank and buffer.size
        ]

        def start() -> Any:
            for source, target in zip(kept, wanted, strict=True):
                target[...] = source
            if not others:
                return None
            self._group._start_coalescing()
            for post, peer, data in others:
                getattr(self._group, post)([self._tensor(data)], peer, 0)
            return self._group._end_coalescing()

        return self._start("exchange", start, (sends, recvs))

    def broadcast(self, buffer: Buffer, root: int) -> Work:
        """Fill ``buffer`` on every rank with that of ``root``."""
        check_peers([root], self.size)
        options = dist.BroadcastOptions()
        options.rootRank = root
        options.rootTensor = 0
        data = as_bytes(buffer)
        return self._start(
            "broadcast",
            lambda: self._group.broadcast([self._tensor(data)], options),
            data,
        )

    def all_gather(self, out: Buffer, part: Buffer) -> Work:
        """Concatenate the ranks' equal-sized ``part`` into ``out`` (flat)."""
        check_gather(out, part, self.size)
        given = as_bytes(out), as_bytes(part)
        return self._start(
            "all_gather",
            lambda: self._group._allgather_base(*map(self._tensor, given)),
            given,
        )

    def reduce_scatter(self, part: Buffer, whole: Buffer, op: Reduction = "sum") -> Work:
        """Reduce the ranks' ``whole`` and keep slice ``rank`` of it (flat, equal)."""
        check_gather(whole, part, self.size)
        check_reduction(whole, op)
        native = native_form(op, flat(part), flat(whole))
        if native is None:
            came = cupy.empty((self.size, part.size), part.dtype)
            counts = [part.size] * self.size
            work = self.all_to_all(came, counts, whole, counts)
            target = flat(part)
            return DeferredWork(work, lambda: reduce_parts(target, list(came), op))
        options = dist.ReduceScatterOptions()
        options.reduceOp, given = native
        return self._start(
            "reduce_scatter",
            lambda: self._group._reduce_scatter_base(*map(self._tensor, given), options),
            given,
        )

    def all_reduce(self, buffer: Buffer, op: Reduction = "sum") -> Work:
        """Reduce ``buffer`` over the ranks in place, the same bits on every rank."""
        check_reduction(buffer, op)
        target = flat(buffer)
        native = native_form(op, target)
        if native is None:
            came = cupy.empty((self.size, target.size), target.dtype)
            work = self.all_gather(came, target)
            return DeferredWork(work, lambda: reduce_parts(target, list(came), op))
        options = dist.AllreduceOptions()
        options.reduceOp, given = native
        return self._start(
            "all_reduce",
            lambda: self._group.allreduce([self._tensor(given[0])], options),
            given,
        )

    def all_to_all(
        self,
        out: Buffer,
        out_counts: Sequence[int],
        whole: Buffer,
        in_counts: Sequence[int],
    ) -> Work:
        """Send ``in_counts[q]`` elements of flat ``whole`` to each rank q."""
        check_all_to_all(out, out_counts, whole, in_counts, self.rank, self.size)
        # One group of sends and receives is what torch makes of its alltoall_base;
        # made here, empty messages and our own piece stay out of it.
        return self.exchange(
            list(enumerate(pieces(flat(whole), in_counts))),
            list(enumerate(pieces(flat(out), out_counts))),
        )

    def barrier(self) -> None:
        """Return when every rank has come here."""
        with cupy.cuda.Device(self._device.index):
            self.all_reduce(cupy.zeros(1, np.int32)).wait()
            cupy.cuda.get_current_stream().synchronize()
        self._lifetime.check()

    def window(self, buffers: Sequence[Buffer]) -> Window | None:
        """Let all ranks read these buffers of each, by the copy engines of one host's GPUs."""
        self._lifetime.check()
        return open_window(self, self._mappings, buffers)

    def split(self, color: int | None, key: int) -> NcclComm | None:
        """Make one communicator of all ranks that pass the same ``color``."""
        self._lifetime.check()
        self._splits += 1
        name = f"split-{self._splits}"
        members = meet_to_split(
            self._store,
            name,
            color,
            key,
            rank=self.rank,
            size=self.size,
            limit=self.limit,
            lifetime=self._lifetime,
        )
        if not members:
            return None
        child = NcclComm(
            dist.PrefixStore(f"{name}-{color}", self._store),
            rank=members.index(self.rank),
            size=len(members),
            device=self._device.index,
            timeout=self.timeout,
            limit=self.limit,
        )
        self._lifetime.adopt(child._lifetime)
        self._children.append(child)
        return child

    def check(self) -> None:
        """Raise if the communicator was aborted."""
        self._lifetime.check()

    def abort(self, reason: str) -> None:
        """Make every pending and later call of this rank raise, children too."""
        self._lifetime.abort(reason)

    def close(self) -> None:
        """Release the transport, children too; never blocks, even if peers are gone."""
        for child in self._children:
            child.close()
        self._closing = True
        self._lifetime.abort("it was closed")

    def _start_to_abort(self) -> None:
        # No daemon: one that an exiting interpreter stops within NCCL ends the process.
        threading.Thread(target=self._end, name="nccl-abort", daemon=False).start()

    def _end(self) -> None:
        """Abort the group; when it was closed, not before the GPU is done with it."""
        if self._closing:
            self._marks.wait(self.timeout)
        self._group.abort()
        with cupy.cuda.Device(self._device.index):
            self._mappings.close()

    def _start(self, name: str, start: Callable[[], Any], kept: Any) -> Work:
        self._lifetime.check()
        try:
            with self._marks.calling(name), current_stream(self._device):
                work = start()
        except RuntimeError as error:
            self._lifetime.check()
            raise CommError(f"{name} on rank {self.rank} failed: {error}") from error
        return NcclWork(self, name, work, kept)

    def _order(self, work: Any, name: str) -> None:
        """Let the caller's stream wait for ``work``, and the watcher for the stream."""
        self._lifetime.check()
        if work is None:
            return
        try:
            with current_stream(self._device):
                work.wait()
        except RuntimeError as error:
            self._lifetime.check()
            raise CommError(f"{name} on rank {self.rank} failed: {error}") from error
        with cupy.cuda.Device(self._device.index):
            self._marks.record(name)

    def _tensor(self, buffer: Buffer) -> torch.Tensor:
        """View a flat array as a tensor."""
        if not buffer.size:  # its pointer is null, which torch refuses
            dtype = getattr(torch, buffer.dtype.name)
            return torch.empty(0, dtype=dtype, device=self._device)
        if buffer.device.id != self._device.index:
            raise ValueError(
                f"A buffer is on CUDA device {buffer.device.id} instead of {self._device.index}."
            )
        return torch.as_tensor(buffer, device=self._device)
