"""The execution of a program on one rank, by steps or recordings of them, and its observer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby, pairwise
from time import time
from typing import Any

import numpy as np

from dask_dgpu.comm.bootstrap import Transport
from dask_dgpu.comm.protocol import Comm, RecordableComm
from dask_dgpu.comm.timed import TimedComm
from dask_dgpu.errors import CommError, GangError
from dask_dgpu.kernels.device import Device
from dask_dgpu.kernels.device.sequences import Recorded
from dask_dgpu.kernels.sums.partial import added
from dask_dgpu.operations.operation import Blocks, conforming, container_of, unboxed
from dask_dgpu.runtime.placement import MOST_PARTS
from dask_dgpu.runtime.prepared import (
    Declared,
    Functions,
    Operating,
    Prepared,
    RankStep,
    Stretch,
)
from dask_dgpu.runtime.program import Key
from dask_dgpu.runtime.ship import Shipping, ship
from graph_opt.model.layout import CUPY, NUMPY, Index
from graph_opt.model.recipe import Block, TaskCall

Array = Any


@dataclass
class Span:
    """The time of a step on a rank's host, and the produced bytes.

    On a GPU the work may continue after it; if the observer profiles, the times are the device's.
    ``hidden`` and ``exposed`` are the seconds of its transfers, and ``sent_bytes`` their bytes, as
    :class:`~dask_dgpu.comm.timed.TimedComm` counts them; ``None`` if the seconds are not known, as
    on GPUs without NCCL and UCX.

    A step of a recording is ``recorded``: the number of steps, and the device's seconds of all. Its
    first step has these seconds, the others none. ``detail`` is what its operation returned besides
    blocks, pickled; spans do not have it before they are shown.
    """

    name: str
    action: str  # "compute" or "transfer", as in Dask's task stream
    start: float
    stop: float = 0.0
    nbytes: int = 0
    hidden: float | None = None
    exposed: float | None = None
    sent_bytes: int = 0
    recorded: tuple[int, float] | None = None
    detail: bytes | None = None

    @property
    def seconds(self) -> float:
        """How long the step took."""
        return self.stop - self.start

    @classmethod
    def joined(cls, ranks: Sequence[Span]) -> Span:
        """Return the step of all ranks: the times of the slowest, and the bytes of all."""
        slowest = max(ranks, key=lambda span: (span.seconds, span.recorded or ()))
        nbytes, sent_bytes = sum(s.nbytes for s in ranks), sum(s.sent_bytes for s in ranks)
        return replace(slowest, nbytes=nbytes, sent_bytes=sent_bytes)

    def values(self) -> tuple[Any, ...]:
        """Return all fields in order, in a thirtieth of the time of ``astuple``."""
        return tuple(vars(self).values())


class Observer:
    """Receives the progress of a program; any method may raise to stop it. This one ignores it.

    If it is ``profiled``, steps have the times of the device.
    """

    profiled = False

    def now(self) -> float:
        """Return the time, by the clock of spans."""
        return time()

    def progress(self, step: str, done: int, steps: int) -> None:
        """Receive the progress within a step."""

    def detail(self, output: str, detail: Any) -> None:
        """Receive what the operation of a value returned besides its blocks."""

    def calling(self) -> AbstractContextManager[Any]:
        """Return a context for the call of a block function, which may be a user's."""
        return nullcontext()

    @contextmanager
    def step(self, name: str, action: str) -> Iterator[Span]:
        """Surround a step.

        Yields
        ------
        Span
            The step's.
        """
        yield Span(name, action, self.now())


IGNORE = Observer()

MERGED = ()
"""Stands for a part of a sum that is in another one."""


def execute(
    todo: Prepared,
    names: Sequence[str],
    comm: Comm,
    device: Device,
    values: list[Blocks],
    observer: Observer = IGNORE,
) -> dict[Key, Array]:
    """Run a program as one rank; return its blocks of the results, by name and place.

    ``values`` has this rank's blocks of each input; they are consumed. A block is freed after its
    last use. When this returns, the host has waited for the device. Observers and callers get the
    ``names`` of values.

    Work runs on the compute lane unless a step says otherwise. Both lanes wait for each other after
    each step, so a step may read blocks of either lane, and either lane may reuse freed memory.
    """
    return Rank(todo, names, comm, device, values, observer).run()


class Rank:
    """One rank of a program that runs; ``values`` are its blocks by the numbers of values."""

    def __init__(
        self,
        todo: Prepared,
        names: Sequence[str],
        comm: Comm,
        device: Device,
        values: list[Blocks],
        observer: Observer,
    ) -> None:
        self.todo, program = todo, todo.program
        self.device, self.observer = device, observer
        self.names = names
        self.given_comm = comm
        self.is_recordable = comm.size == 1 or (
            isinstance(comm, RecordableComm)
            and not program.machine.two_level(comm.size)  # never tried between hosts
        )
        self.timed = _timed(comm, device, program.transport)
        self.comm = self.timed or comm
        self.values = {number: values.pop(0) for number in range(len(values))}
        self.on_cuda = device.kind == "cuda"
        self.recorded: list[Recorded] = []
        self.launches: list[tuple[Any, list[Span]]] = []  # of recordings, with their clocks
        self.most_kept = program.limits.kept_recordings

    def run(self) -> dict[Key, Array]:
        """Run all steps; return this rank's blocks of the results."""
        device, values = self.device, self.values
        device.begin()
        self._borrow()
        clock = device.clock() if self.observer.profiled else None
        spans: list[Span] = []
        records = clock is None and device.sequences is not None
        with device.computing():
            for stretch in self.todo.stretches:
                if records and self._repeat(stretch):
                    continue
                for step in stretch.steps:
                    spans.append(self.take(step))
                    if clock is not None:
                        clock.tick()
            self._copy_recorded()
            device.synchronize()
            self.comm.check()
            if clock is not None:
                _write_times(spans, clock.seconds_ago(), self.observer.now())
            for launch in self.launches:
                _write_recorded(*launch)
            if self.timed is not None:
                self.timed.finish()
            results = {
                (self.names[number], *index): self._outside(values[number][index], on_host)
                for (number, index), on_host in self.todo.results
            }
        return {key: device.hand_over(block) for key, block in results.items()}

    def take(self, step: RankStep) -> Span:
        """Take one step, and free what ends with it."""
        name = self.names[step.number]
        with self.observer.step(name, step.action) as span, self.device.named(name):
            if step.moves:
                self._bring(step.moves)
            if isinstance(step.work, Functions):
                made = self._call_functions(step.number, step.work)
            else:
                made = self._run_collective(step.number, step.work)
            span.nbytes = sum([getattr(block, "nbytes", 0) for block in made.values()])
            if self.timed is not None:
                self.timed.note(span)
        self.values[step.number] = made
        self._free(step.ending)
        return span

    def _repeat(self, stretch: Stretch) -> bool:
        """Let the device repeat a stretch that it has recorded; return whether it did.

        A rank repeats what it did for other blocks: the same functions, exchanges and plans. Ranks
        need not agree: recorded exchanges and those of steps meet as they are issued. It does not
        if it has not recorded the steps for such blocks, and cannot do so now.
        """
        sequences, comm = self.device.sequences, self.given_comm
        if sequences is None or not stretch.recordable or not self.is_recordable:
            return False
        places = [(number, index) for number in stretch.reads for index in self.values[number]]
        arrays = [self.values[number][index] for number, index in places]
        container = CUPY if self.on_cuda else NUMPY
        if any(container_of(array) != container for array in arrays):
            return False
        record = partial(self._record, stretch, places)
        recorded = sequences.find(stretch, arrays, record, self.most_kept)
        if recorded is None:
            return False
        if isinstance(comm, RecordableComm):
            comm.hold(recorded)
        made = self._launch(stretch, recorded, arrays)
        self.values |= {number: dict(blocks) for number, blocks in made.items()}
        self.recorded.append(recorded)
        for step in stretch.steps:
            self._free(step.ending)
        return True

    def _record(
        self, stretch: Stretch, places: Sequence[Block], device: Any, arrays: Sequence[Array]
    ) -> tuple[dict[int, Blocks], list[Span]]:
        """Issue the steps on a device that records them, for its own copies of the blocks."""
        other = copy(self)
        other.device, other.observer = device, IGNORE
        other.comm = other.timed = TimedComm(self.given_comm)  # counts bytes
        other.values = {number: {} for number in stretch.reads}
        for (number, index), array in zip(places, arrays, strict=True):
            other.values[number][index] = array
        spans = [other.take(step) for step in stretch.steps]
        made = (step.number for step in stretch.steps)
        return {number: other.values[number] for number in made if number in other.values}, spans

    def _launch(
        self, stretch: Stretch, recorded: Recorded, arrays: Sequence[Array]
    ) -> dict[int, Blocks]:
        """Launch a recording, and report its steps."""
        names = [self.names[step.number] for step in stretch.steps]
        self.observer.progress(names[0], 0, len(names))
        made: dict[int, Blocks] = {}
        spans: Sequence[Span] = ()
        reported: list[Span] = []
        clock = self.device.clock()
        for i, (name, step) in enumerate(zip(names, stretch.steps, strict=True)):
            with self.observer.step(name, step.action) as span:
                if i == 0:
                    made, spans = recorded.launch(arrays)
                    if isinstance(self.given_comm, RecordableComm):
                        self.given_comm.launched()
                    self.device.join()
                    if clock is not None:
                        clock.tick()
                span.nbytes, span.sent_bytes = spans[i].nbytes, spans[i].sent_bytes
            reported.append(span)
        if clock is not None:
            self.launches.append((clock, reported))
        return made

    def _free(self, ending: Iterable[int]) -> None:
        for number in ending:
            self.values.pop(number, None)  # that of a recording may not leave it

    def _copy_recorded(self) -> None:
        """Copy results out of the memory of recordings, which the next run overwrites."""
        for recorded in self.recorded:
            for (number, index), _ in self.todo.results:
                self.values[number][index] = recorded.outside(self.values[number][index])

    def _borrow(self) -> None:
        """Keep the inputs allocated until the lanes have passed their last use, views included."""
        for blocks in self.values.values():
            for index, block in blocks.items():
                blocks[index] = self.device.borrow(block)

    def _bring(self, moves: Sequence[Shipping]) -> None:
        """Move blocks of inputs before their first use."""
        received = ship(moves, self.comm, self.device, self.values, self.names)
        for (number, index), _ in chain.from_iterable(shipping.out for shipping in moves):
            del self.values[number][index]
        for (number, index), block in received.items():
            self.values[number][index] = block

    def _run_collective(self, number: int, work: Operating) -> Blocks:
        """Run a collective on blocks in the device's memory that match the graph's declaration."""
        inputs = [self._given(read) for read in work.inputs]
        for read in work.inputs:
            if read.spent:
                self.values[read.number].clear()  # the algorithm's references are the only ones

        def progress(done: int, steps: int) -> None:
            self.observer.progress(self.names[number], done, steps)

        made = work.run(self.comm, self.device, *inputs, progress=progress)
        self.device.join()  # before the inputs are freed
        if isinstance(made, tuple):
            made, detail = made
            self.observer.detail(self.names[number], detail)
        if () in made:
            made[()] = unboxed(made[()])
        return made

    def _given(self, read: Declared) -> Blocks:
        """Return this rank's own blocks of an input."""
        blocks = self._conform(read)
        return {index: blocks[index] for index in read.owned}

    def _conform(self, read: Declared) -> Blocks:
        """Convert the blocks of a value to the graph's declaration, in the device's memory."""
        value, blocks, replaced = read.value, self.values[read.number], []
        of_numpy = value.container == NUMPY
        for index, block in blocks.items():
            here = (
                self._on_device(block) if self.on_cuda else of_numpy and type(block) is np.ndarray
            )
            shape = read.shapes[index]
            if here and block.dtype == read.dtype and block.shape == shape:
                continue
            # a collective's result may be on the device
            container = CUPY if self._on_device(block) else value.container
            declared = self.names[read.number], value.dtype, shape, container
            replaced.append((index, self.device.to_device(conforming(block, *declared))))
        if replaced:
            originals = dict(blocks)
            blocks.update(replaced)
            self.device.join()  # before they are freed
            del originals
        return blocks

    def _call_functions(self, number: int, work: Functions) -> Blocks:
        """Run the block functions of a step for the blocks of this rank."""
        name = self.names[number]
        observer, values, on_host = self.observer, self.values, work.on_host
        observer.progress(name, 0, work.needs)
        received: dict[Block, Array] = {}
        if work.shipping:
            received = ship(work.shipping, self.comm, self.device, values, self.names)
        together, count = work.together, len(work.calls)
        most = 1 if together is None else self.device.batch
        done: set[Index] = set()

        def block(read: Block) -> Array:
            number, index = read
            if read in received:
                return received[read]
            return values[number].get(index, MERGED) if work.merges else values[number][index]

        def read(call: TaskCall) -> list[Array]:
            given = [*map(block, call.reads)]
            for recorded in self.recorded if work.once else ():  # users may keep blocks
                given = [recorded.outside(block) for block in given]
            return [self._outside(block, on_host) for block in given] if on_host else given

        def make(batch: Sequence[tuple[Index, TaskCall]]) -> list[Array]:
            read_by = [(call, read(call)) for _, call in batch]
            try:
                with observer.calling():
                    given = [call.arguments(blocks) for call, blocks in read_by]
                    if together is None or len(batch) == 1:
                        made = [batch[0][1].function(*given[0])]
                    else:
                        made = together(given)
            except CommError as error:  # from a gang within the function: this gang lost no rank
                raise GangError(f"{type(error).__name__}: {error}") from error
            done.update(index for index, _ in batch)
            observer.progress(name, len(done), count)
            return made

        def computed(some: Sequence[Index]) -> list[Array]:
            calls = [(index, work.calls[index]) for index in some]
            batches = [calls[i : i + most] for i in range(0, len(calls), most)]
            return [*chain.from_iterable(self.device.each(make, batches))]

        if work.groups:
            merged = _merged(work, computed)
        else:
            merged = dict(zip(work.calls, computed([*work.calls]), strict=True))
        self.device.join()  # before received blocks are freed
        return merged

    def _on_device(self, block: Array) -> bool:
        return self.on_cuda and type(block).__module__.startswith("cupy")

    def _outside(self, block: Array, on_host: bool) -> Array:
        """Return a block where its reader expects it."""
        move = on_host and self._on_device(block)
        return unboxed(self.device.to_host(block)) if move else block


def _timed(comm: Comm, device: Device, transport: Transport) -> TimedComm | None:
    """Return the communicator with clocks, ``None`` if nobody knows its times."""
    if device.kind == "cpu" or (comm.size > 1 and transport == "ucx"):  # the host waits
        return TimedComm(comm)
    if comm.size == 1 or transport != "nccl":
        return None
    from dask_dgpu.comm.timed_gpu import StreamTimedComm

    return StreamTimedComm(comm, device.watch())


def _merged(work: Functions, computed: Callable[[Sequence[Index]], list[Array]]) -> Blocks:
    """Compute parts of sums, a few at a time, and merge each group of them into its first."""
    merged: Blocks = {}
    into = {index: group[0] for group in work.groups for index in group}
    into |= {index: index for index in work.calls if index not in into}
    order = [*into]
    for some in (order[i : i + MOST_PARTS] for i in range(0, len(order), MOST_PARTS)):
        pairs = zip(some, computed(some), strict=True)
        for first, group in groupby(pairs, key=lambda pair: into[pair[0]]):
            blocks = [each for _, each in group]
            merges = len(blocks) > 1 or first in merged
            merged[first] = added([merged.get(first, MERGED), blocks]) if merges else blocks[0]
    return merged


def _write_times(spans: Iterable[Span], ago: Iterable[float], now: float) -> None:
    """Write the times of steps, whose bounds the device passed so many seconds ago."""
    for span, (start, stop) in zip(spans, pairwise(ago), strict=True):
        span.start, span.stop = now - start, now - stop


def _write_recorded(clock: Any, spans: Sequence[Span]) -> None:
    """Write the device's time of a recording to its first step; the others have none."""
    seconds = clock.seconds_ago()[0]
    end = spans[0].start + seconds
    for i, span in enumerate(spans):
        span.recorded = len(spans), seconds
        span.start, span.stop = end if i else span.start, end
