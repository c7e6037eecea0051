"""Launches on both lanes as one CUDA graph, which is sent at once for other arrays.

::

    recording    inputs --> kernels, exchanges ... --> results      all in memory of its own
                   ^                                       |
    a call       copies, or the arrays themselves        copies of those that leave

Torch does the same for its modules, see
https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import cupy
from cuda.bindings import runtime

from dask_dgpu.errors import CommAbortedError
from dask_dgpu.kernels.device.guards import each_array
from dask_dgpu.kernels.device.sequences import Work

if TYPE_CHECKING:
    from dask_dgpu.kernels.device.recorder import Recorder

Array = Any

RELAXED = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeRelaxed
COPY = runtime.cudaGraphNodeType.cudaGraphNodeTypeMemcpy
ON_DEVICE = runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice


class RecordedSequence:
    """Work that a ``recorder`` has recorded; see :class:`~.sequences.Recorded`.

    Memory is kept as long as the recording or one of its results.
    """

    def __init__(
        self, recorder: Recorder, arrays: Sequence[Array], copied: Collection[int], work: Work
    ) -> None:
        self.ended = False
        self._graph: Any = None
        self._lock = threading.Lock()
        self._chunks: list[tuple[int, int]] = []  # the first address of each, and that behind it
        self._pool = cupy.cuda.MemoryPool(_noting(self._chunks, cupy.cuda.get_allocator()))
        with cupy.cuda.using_allocator(self._pool.malloc):
            self._inputs = [
                cupy.empty_like(array) if i in copied else array for i, array in enumerate(arrays)
            ]
            self._copied = sorted(copied)
            recorder.kept = []
            self._graph, self._result = _recorded(recorder, work, self._inputs)
            self._kept = recorder.kept
        self.nbytes = int(self._pool.total_bytes())
        # memory of the pool may have been freed by work that still runs
        cupy.cuda.get_current_stream().wait_event(cupy.cuda.Stream.null.record())

    def launch(self, arrays: Sequence[Array]) -> Any:
        """Send the launches on the current stream; return what they compute.

        Raises
        ------
        CommAbortedError
            If the recording was ended, as a communicator in it was aborted.
        """
        for at in self._copied:
            cupy.copyto(self._inputs[at], arrays[at])
        with self._lock:
            if self.ended:
                raise CommAbortedError("the communicator of a recorded sequence was aborted")
            _checked(runtime.cudaGraphLaunch(self._graph, cupy.cuda.get_current_stream().ptr))
        return self._result

    def outside(self, block: Any) -> Any:
        """Return a block with copies of the arrays in memory of the recording."""
        return each_array(block, lambda array: array.copy() if self._owns(array) else array)

    def _owns(self, array: Array) -> bool:
        return any(start <= array.data.ptr < stop for start, stop in self._chunks)

    def end(self) -> None:
        """Forget the launches; the device may still be at work on them."""
        self.ended = True
        with self._lock:
            graph, self._graph = self._graph, None
        if graph is not None:
            _checked(runtime.cudaGraphExecDestroy(graph))

    def __del__(self) -> None:
        self.end()
        self._result, self._inputs, self._kept = None, [], []
        self._pool.free_all_blocks()  # pools are cycles, and freed late


def _recorded(recorder: Recorder, work: Work, arrays: list[Array]) -> tuple[Any, Any]:
    """Record the launches of some work; return them, ready to be sent, and its result."""
    with recorder.computing() as stream:
        _checked(runtime.cudaStreamBeginCapture(stream.ptr, RELAXED))
        try:
            recorder.join()  # the other lane is recorded too
            result = work(recorder, arrays)
            recorder.rejoin()
        finally:
            ended, graph = runtime.cudaStreamEndCapture(stream.ptr)
    _checked((ended,))
    try:
        _check(graph)
        return _checked(runtime.cudaGraphInstantiate(graph, 0)), result
    finally:
        runtime.cudaGraphDestroy(graph)


def _check(graph: Any) -> None:
    """Raise for copies from or to the host, whose memory is not kept."""
    _, count = _checked(runtime.cudaGraphGetNodes(graph))
    nodes, _ = _checked(runtime.cudaGraphGetNodes(graph, count))
    for node in nodes:
        if _checked(runtime.cudaGraphNodeGetType(node)) == COPY:
            copy = _checked(runtime.cudaGraphMemcpyNodeGetParams(node))
            ends = copy.srcPtr.ptr, copy.dstPtr.ptr
            if copy.kind != ON_DEVICE and not all(map(_is_on_device, ends)):
                raise NotImplementedError("copies from or to the host cannot be recorded")


def _is_on_device(address: int) -> bool:
    attributes = cupy.cuda.runtime.pointerGetAttributes(int(address))
    return int(attributes.type) == int(runtime.cudaMemoryType.cudaMemoryTypeDevice)


def _checked(found: tuple[Any, ...]) -> Any:
    """Return what a function of CUDA returned; raise its error."""
    status, *values = found
    if status != runtime.cudaError_t.cudaSuccess:
        raise cupy.cuda.runtime.CUDARuntimeError(int(status))
    return values[0] if len(values) == 1 else values


def _noting(chunks: list[tuple[int, int]], allocate: Any) -> Any:
    """Return an allocator that notes the addresses of its memory, which no recorded stream owns.

    Pools order their memory by streams.
    """

    def chunk(size: int) -> Any:
        with cupy.cuda.Stream.null:
            memory = allocate(size)
        chunks.append((memory.ptr, memory.ptr + size))
        return memory

    return chunk
