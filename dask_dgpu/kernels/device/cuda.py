"""A CUDA device: CuPy arrays on two kept streams, and guarded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeVar

import cupy

from dask_dgpu.kernels.device import Device
from dask_dgpu.kernels.device.clocks import LaneClock, Watch
from dask_dgpu.kernels.device.guards import bare, each_array, guarded
from dask_dgpu.kernels.device.replay import Replay
from dask_dgpu.kernels.device.sequences import Sequences, Work
from dask_dgpu.kernels.fft.cuda import ready_plans
from graph_opt.model.names import label

Array = Any
T = TypeVar("T")

MOST_CONSTANTS = 64
"""Most cached constants."""


class CudaDevice(Device):
    """The current CUDA device of this process, with one stream for each lane.

    Arrays come from CuPy's current allocator, which dask-cuda sets to RMM's pool if there is one.
    """

    kind, batch = "cuda", 64  # equal blocks share launches

    def __init__(self) -> None:
        self.index = cupy.cuda.runtime.getDevice()
        self._compute = cupy.cuda.Stream(non_blocking=True)
        self._transfer = _urgent_stream()
        self._lanes = self._compute, self._transfer
        self._moved = True  # whether there was work on the transfer lane since the last join
        self._constants: dict[Hashable, Array] = {}
        self._borrowed: deque[tuple[list[Any], Any]] = deque()
        self._watch: Watch | None = None
        # a wait for a mark is not affected by its next record
        self._joint = cupy.cuda.Event(disable_timing=True)
        self._foreign = cupy.cuda.Event(disable_timing=True)
        self._recorder: Any = None  # created when it is first needed
        self.sequences: Sequences | None = Sequences(
            self._record, lambda array: int(array.data.ptr)
        )

    def empty(self, shape: tuple[int, ...] | int, dtype: str) -> Array:
        return cupy.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...] | int, dtype: str) -> Array:
        return cupy.zeros(shape, dtype)

    def workspace(self, name: str, size: int, dtype: str) -> Array:
        return cupy.empty(size, dtype)  # the allocator caches memory

    def constant(self, value: Array) -> Array:
        key = value.dtype, value.tobytes()
        array = self._constants.get(key)
        if array is None:
            array = cupy.asarray(value)
            cupy.cuda.get_current_stream().synchronize()
            if len(self._constants) < MOST_CONSTANTS:
                self._constants[key] = array
        return array

    def owns(self, array: Array) -> bool:
        if type(array) is not cupy.ndarray or array.base is not None:
            return False
        memory = array.data.mem
        owner = getattr(memory, "_owner", None)  # RMM's memory is unowned too
        foreign = isinstance(memory, cupy.cuda.UnownedMemory)
        return not foreign or type(owner).__module__.startswith("rmm")

    def again(self, known: dict[Hashable, Any], key: Hashable, work: Callable[[], T]) -> T:
        if key not in known:
            known[key] = Replay()
        done: T = known[key](work)
        return done

    def each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        with self._compute, ready_plans:
            made = [function(item) for item in items]  # map would stop at a StopIteration
            # users' functions may launch kernels on streams that CuPy does not control
            self.after(cupy.cuda.Stream.null.record(self._foreign))
            return made

    def join(self) -> None:
        self._joint.record(self._compute)
        self._transfer.wait_event(self._joint)
        if self._moved:
            self._moved = False
            self._joint.record(self._transfer)
            with self._compute:
                self.after(self._joint)
        self._free_borrowed()

    def _record(self, arrays: Sequence[Array], copied: Collection[int], work: Work) -> Any:
        from dask_dgpu.kernels.device import recorder, sequence

        if self._recorder is None:
            self._recorder = recorder.Recorder(self._constants)
        return sequence.RecordedSequence(self._recorder, arrays, copied, work)

    def computing(self) -> AbstractContextManager[Any]:
        return self._compute

    def transferring(self) -> AbstractContextManager[Any]:
        self._moved = True
        return self._transfer

    def named(self, name: str) -> AbstractContextManager[Any]:
        from cupyx.profiler import time_range

        return time_range(label(name))

    def begin(self) -> None:
        # Dask's tasks use the legacy stream, which does not wait for ours, nor ours for it
        made = _legacy_mark()
        for lane in self._lanes:
            lane.wait_event(made)

    def mark(self) -> Any:
        event = cupy.cuda.Event(disable_timing=True)
        event.record(cupy.cuda.get_current_stream())
        return event

    def after(self, mark: Any) -> None:
        if mark is None:
            return
        stream = cupy.cuda.get_current_stream()
        if self._watch is None or stream != self._compute:
            stream.wait_event(mark)
            return
        begin = stream.record()
        stream.wait_event(mark)
        self._watch.waits.append((begin, stream.record()))

    def clock(self) -> LaneClock:
        return LaneClock(self._compute)

    def watch(self) -> Watch:
        if self._watch is None:
            self._watch = Watch(self._compute, cupy.cuda.Stream(non_blocking=True), [])
        self._watch.waits.clear()
        return self._watch

    def borrow(self, block: Array) -> Array:
        return each_array(block, lambda array: guarded(array, self._keep_borrowed))

    def hand_over(self, block: Array) -> Array:
        return each_array(block, _handed_over)

    def synchronize(self) -> None:
        for lane in reversed(self._lanes):
            lane.synchronize()
        self._free_borrowed()

    def _keep_borrowed(self, memory: Any) -> None:
        """Keep borrowed memory until both lanes have finished their work so far."""
        lanes = self._lanes
        if not all(lane.done for lane in lanes):
            marks = [lane.record(cupy.cuda.Event(disable_timing=True)) for lane in lanes]
            self._borrowed.append((marks, memory))

    def _free_borrowed(self) -> None:
        """Free borrowed memory that both lanes have finished with."""
        with suppress(IndexError):  # the queue is empty
            while True:
                marks, memory = first = self._borrowed.popleft()
                if not all(mark.done for mark in marks):
                    self._borrowed.appendleft(first)
                    return
                del memory, first

    def recover(self) -> None:
        self.synchronize()

    def release(self) -> None:
        self.synchronize()
        if self.sequences is not None:
            self.sequences.clear()
        self._constants.clear()
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()

    def to_device(self, block: Array) -> Array:
        return cupy.asarray(block)

    def to_host(self, block: Array) -> Array:
        return cupy.asnumpy(block)


def _legacy_mark() -> Any:
    """Mark the end of the work so far of Dask's tasks, and of other code."""
    return cupy.cuda.Stream.null.record(cupy.cuda.Event(disable_timing=True))


def _handed_over(array: Array) -> Array:
    own = bare(array)  # borrowed memory goes back to its owner
    return guarded(array, _tasks_are_past) if own is array else own


def _tasks_are_past(memory: Any) -> None:
    """Wait for the legacy stream, before ``memory`` returns to its lane."""
    cupy.cuda.Stream.null.synchronize()


def _urgent_stream() -> Any:
    """Create a stream whose kernels run before others that wait for a multiprocessor.

    Packing is short, and other ranks wait for it; behind a long transform it would start late. CuPy
    has no streams with a priority.
    """
    from cuda.bindings import runtime

    status, _least, greatest = runtime.cudaDeviceGetStreamPriorityRange()
    if status == runtime.cudaError_t.cudaSuccess:
        status, stream = runtime.cudaStreamCreateWithPriority(
            runtime.cudaStreamNonBlocking, greatest
        )
    if status != runtime.cudaError_t.cudaSuccess:
        return cupy.cuda.Stream(non_blocking=True)
    return cupy.cuda.Stream.from_external(_Stream(int(stream)))


class _Stream:
    """A stream as an object of CUDA's protocol for streams."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        """Version of the protocol, and the stream."""
        return 0, self.handle
