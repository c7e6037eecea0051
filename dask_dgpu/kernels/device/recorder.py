"""A CUDA device while it records: nothing that the host does may depend on the work."""

# The protocol documents the methods.
# ruff: noqa: D102

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

import cupy

from dask_dgpu.kernels.device.cuda import CudaDevice

Array = Any
T = TypeVar("T")


class Recorder(CudaDevice):
    """A device whose work is recorded: on streams of its own, for which no other thread waits.

    It shares the ``constants`` of another device. The arrays that it has ``kept`` belong to the
    recording.
    """

    def __init__(self, constants: dict[Hashable, Array]) -> None:
        super().__init__()
        self.sequences = None
        self._constants = constants
        self.kept: list[Array] = []
        _ready_torch(self._compute, self.index)

    def rejoin(self) -> None:
        """Let the compute lane wait for the other, which ends its part in a recording."""
        self._moved = True
        self.join()

    def keep(self, table: Array) -> Array:
        """Return a copy of a host's array on the device, now and for as long as the recording."""
        with cupy.cuda.Stream.null as stream:
            there = cupy.asarray(table)
            stream.synchronize()
        self.kept.append(there)
        return there

    def again(self, known: dict[Hashable, Any], key: Hashable, work: Callable[[], T]) -> T:
        return work()

    def each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        with self._compute:
            return [function(item) for item in items]

    def synchronize(self) -> None:
        raise NotImplementedError("the host cannot wait for work that is recorded")

    def to_device(self, block: Array) -> Array:
        return block if isinstance(block, cupy.ndarray) else self.to_host(block)

    def to_host(self, block: Array) -> Array:
        raise NotImplementedError("blocks that are recorded do not leave the device")


def _ready_torch(stream: Any, device: int) -> None:
    """Let torch create its handle of cuBLAS for a stream, for which the host waits."""
    import torch

    from dask_dgpu.torch_streams import torch_stream

    with torch.cuda.stream(torch_stream(stream.ptr, device)):
        one = torch.ones((1, 1), device=torch.device("cuda", device))
        torch.mm(one, one)
    stream.synchronize()
