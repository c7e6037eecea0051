"""Devices that keep the books of each lane, as a detector of races does for threads.

On a GPU nothing else orders two streams, and what is wrong shows under load only, if at all.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest

from dask_dgpu.kernels import gemm, pack
from dask_dgpu.kernels.device import HostDevice
from dask_dgpu.kernels.pack import InMessage, Pieces
from dask_dgpu.runtime import tasks
from dask_dgpu.runtime.execute import Rank

Array = Any
Clock = dict[str, int]
LANES = ("compute", "transfer")


class UnorderedError(RuntimeError):
    """An array is used on a lane that has not waited for it."""


class LaneDevice(HostDevice):
    """Knows of each array on which lane it was made, and of each lane what it has waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.clocks: dict[str, Clock] = {lane: dict.fromkeys(LANES, 0) for lane in LANES}
        self.stack: list[str] = []
        self.made: dict[int, tuple[str, int]] = {}
        self.used: dict[int, Clock] = {}
        self.early: list[str] = []
        self.messages: set[int] = set()
        self.thread = threading.current_thread()

    @property
    def lane(self) -> str:
        if not self.stack:
            raise UnorderedError("this is done on no lane")
        return self.stack[-1]

    def wrote(self, array: Array) -> Array:
        lane, whole = self.lane, owner(array)
        self.clocks[lane][lane] += 1
        if id(whole) not in self.made:
            weakref.finalize(whole, self.freed, id(whole), lane)
        self.made[id(whole)] = lane, self.clocks[lane][lane]
        return array

    def freed(self, key: int, lane: str) -> None:
        """Note memory that its lane gives out again while the other may be at work there.

        Not all that is done on a lane is seen: it counts for what the transfer lane has made,
        which is read on the compute lane by NumPy as a rule. But messages are only unpacked. Those
        to other ranks of this process are freed when these have read them.
        """
        del self.made[key]
        used = self.used.pop(key, {})
        if threading.current_thread() is not self.thread:
            return
        for other in {*LANES} - {lane}:
            beside = lane == "transfer" and key not in self.messages
            last = self.clocks[other][other] if beside else used.get(other, 0)
            if self.clocks[lane][other] < last:
                self.early.append(f"memory of the {lane} lane is freed ahead of the {other} lane")
        self.messages.discard(key)

    def reads(self, array: Array) -> None:
        whole, now = owner(array), self.clocks[self.lane]
        lane, at = self.made.get(id(whole), (self.lane, 0))
        if now[lane] < at:
            raise UnorderedError(f"an array of the {lane} lane is used on the {self.lane} lane")
        if id(whole) in self.made:
            self.used.setdefault(id(whole), {})[self.lane] = now[self.lane]

    @contextmanager
    def _on(self, lane: str) -> Iterator[None]:
        self.stack.append(lane)
        self.clocks[lane][lane] += 1  # work that is not seen here
        try:
            yield
        finally:
            self.stack.pop()

    def computing(self) -> AbstractContextManager[Any]:
        return self._on("compute")

    def transferring(self) -> AbstractContextManager[Any]:
        return self._on("transfer")

    def mark(self) -> Clock:
        return dict(self.clocks[self.lane])

    def after(self, mark: Clock | None) -> None:
        for lane, at in (mark or {}).items():
            self.clocks[self.lane][lane] = max(at, self.clocks[self.lane][lane])

    def join(self) -> None:
        latest = {lane: max(clock[lane] for clock in self.clocks.values()) for lane in LANES}
        self.clocks = {lane: dict(latest) for lane in LANES}

    def synchronize(self) -> None:
        self.join()

    def each(self, function: Callable[[Any], Any], items: Any) -> list[Any]:
        with self.computing():
            made = [function(item) for item in items]
            return [self.wrote(block) if isinstance(block, np.ndarray) else block for block in made]

    def empty(self, shape: Any, dtype: str) -> Array:
        return self.wrote(super().empty(shape, dtype))

    def zeros(self, shape: Any, dtype: str) -> Array:
        return self.wrote(super().zeros(shape, dtype))

    def workspace(self, name: str, size: int, dtype: str) -> Array:
        return self.wrote(np.empty(size, dtype))

    def to_device(self, block: Array) -> Array:
        return block if id(owner(block)) in self.made else self.wrote(block.copy())

    def to_host(self, block: Array) -> Array:
        done = self.mark()  # the host waits for the lane
        for clock in self.clocks.values():
            clock.update({lane: max(at, done[lane]) for lane, at in clock.items()})
        return block


class LaneComm:
    """Looks at the buffers of each call."""

    def __init__(self, inner: Any, device: LaneDevice) -> None:
        self.inner, self.device = inner, device

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def exchange(self, sends: Sequence[Any], recvs: Sequence[Any]) -> Any:
        return self._started(self.inner.exchange, sends, recvs, [b for _, b in (*sends, *recvs)])

    def all_reduce(self, buffer: Array, op: Any = "sum") -> Any:
        return self._started(self.inner.all_reduce, buffer, op, [buffer])

    def window(self, buffers: Sequence[Array]) -> Any:
        return LaneWindow(self.inner.window(buffers), self.device, buffers)

    def _started(self, call: Callable[..., Any], one: Any, two: Any, buffers: list[Array]) -> Any:
        for buffer in buffers:
            self.device.reads(buffer)
        return call(one, two)


class LaneWindow:
    """Buffers that others read until it is closed."""

    def __init__(self, inner: Any, device: LaneDevice, buffers: Sequence[Array]) -> None:
        self.inner, self.device, self.buffers = inner, device, buffers
        self.get = inner.get

    def close(self) -> Any:
        for buffer in self.buffers:
            self.device.reads(buffer)
        return self.inner.close()


def owner(array: Array) -> Array:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def arrays_of(side: Any) -> list[Array]:
    if isinstance(side, InMessage):
        return [side.message]
    return [array for array in side.arrays.arrays if isinstance(array, np.ndarray)]


@contextmanager
def checking(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[LaneDevice]]:
    """Yield the devices of the programs that are run; check that nothing was freed too early."""
    devices: list[LaneDevice] = []
    rank = threading.local()
    original, multiply, copy = tasks.execute, gemm.accumulate, pack.copy_pieces

    def execute(program: Any, fixed: Any, comm: Any, device: Any, *arguments: Any) -> Any:
        rank.device = device = LaneDevice()
        devices.append(device)
        return original(program, fixed, LaneComm(comm, device), device, *arguments)

    def accumulate(out: Array, a: Array, b: Array) -> None:
        for array in (out, a, b):
            rank.device.reads(array)
        multiply(out, a, b)
        rank.device.wrote(out)

    def copy_pieces(device: LaneDevice, *batches: Pieces) -> None:
        for pieces in batches:
            for side in (pieces.source, pieces.target):
                for array in arrays_of(side):
                    device.reads(array)
                if isinstance(side, InMessage):
                    device.messages.add(id(owner(side.message)))
        copy(device, *batches)
        for pieces in batches:
            for array in arrays_of(pieces.target):
                device.wrote(array)

    call = Rank._call_functions

    def call_functions(self: Rank, name: str, work: Any) -> Any:
        with self.device.computing():
            for each in work.calls.values():
                for number, index in each.reads:
                    block = self.values[number].get(index)
                    if isinstance(block, np.ndarray):
                        rank.device.reads(block)
        return call(self, name, work)

    monkeypatch.setattr(Rank, "_call_functions", call_functions)
    monkeypatch.setattr(tasks, "execute", execute)
    monkeypatch.setattr(gemm, "accumulate", accumulate)
    monkeypatch.setattr(pack, "copy_pieces", copy_pieces)
    yield devices
    assert not [early for device in devices for early in device.early]


class Lender(HostDevice):
    """Spoils what it lends out and what it was given back, so that only copies of it are right."""

    def borrow(self, block: Array) -> Array:
        lent, block[...] = block.copy(), np.nan
        return lent

    def hand_over(self, block: Array) -> Array:
        handed, block[...] = block.copy(), np.nan
        return handed


def lend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ranks of this process have devices that lend."""
    monkeypatch.setattr(tasks, "_device", lambda program: Lender())
