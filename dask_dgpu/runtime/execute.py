"""The execution of a program on one rank, and the observers of its steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from time import time
from typing import Any

from dask_dgpu.comm.bootstrap import Transport
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.comm.timed import TimedComm
from dask_dgpu.errors import CommError, GangError
from dask_dgpu.kernels.device import Device
from dask_dgpu.operations import OPERATIONS
from dask_dgpu.operations.value import (
    Blocks,
    Collective,
    Facts,
    Given,
    Local,
    Value,
    conforming,
)
from dask_dgpu.runtime.plans import Plans
from dask_dgpu.runtime.program import Key, Program
from dask_dgpu.runtime.ship import ship
from dask_dgpu.runtime.spare import Spare, is_alone, overwrites
from graph_opt.model.layout import Index, label

Array = Any

NUMPY = "numpy.ndarray"


@dataclass
class Span:
    """The time of a step on a rank's host, and the produced bytes.

    On a GPU the work may continue after it. ``hidden`` and ``exposed`` are the seconds of its
    transfers, as :class:`~dask_dgpu.comm.timed.TimedComm` counts them; ``None`` if they are not
    known, as on a GPU without NCCL.
    """

    name: str
    action: str  # "compute" or "transfer", as in Dask's task stream
    start: float
    stop: float = 0.0
    nbytes: int = 0
    hidden: float | None = None
    exposed: float | None = None


class Observer:
    """Receives the progress of a program; any method may raise to stop it. This one ignores it."""

    def progress(self, step: str, done: int, steps: int) -> None:
        """Receive the progress within a step."""

    def detail(self, output: str, detail: Any) -> None:
        """Receive what the operation of a value returned besides its blocks."""

    def facts(self, block: Array) -> Facts:
        """Return the facts about a block that no program writes; they live as long as it."""
        return {}

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
        yield Span(name, action, time())


IGNORE = Observer()


def execute(
    program: Program,
    fixed: Plans,
    comm: Comm,
    device: Device,
    values: dict[str, Blocks],
    observer: Observer = IGNORE,
) -> dict[Key, Array]:
    """Run a program as one rank; return its blocks of the results, by value and place.

    ``values`` has this rank's blocks of the inputs; they are consumed. A block is freed after its
    last use. When this returns, the host has waited for the device.

    Work runs on the compute lane unless a step says otherwise. Both lanes wait for each other after
    each step, so a step may read blocks of either lane, and either lane may reuse freed memory.
    """
    return _Rank(program, fixed, comm, device, values, observer).run()


@dataclass
class _Rank:
    program: Program
    fixed: Plans
    comm: Comm
    device: Device
    values: dict[str, Blocks]
    observer: Observer

    def __post_init__(self) -> None:
        steps = {step.output: step.result for step in self.program.steps}
        self.facts = self._facts()
        self.moves = dict(self.fixed.fixed.moves)
        self.declared: dict[str, Value] = dict(self.program.inputs) | steps
        self.timed = _timed(self.comm, self.device, self.program.transport)
        self.comm = self.timed or self.comm

    def run(self) -> dict[Key, Array]:
        """Run all steps; return this rank's blocks of the results."""
        program, device, values = self.program, self.device, self.values
        device.begin()
        self._borrow()
        with device.computing():
            for step, ending, spent in zip(program.steps, program.ends, program.spent, strict=True):
                name = label(step.output)
                with self.observer.step(name, _action(step)) as span, device.named(name):
                    self._bring(step)
                    if isinstance(step, Local):
                        made = self._call_functions(step, name, spent)
                    else:
                        made = self._run_collective(step, name, spent)
                    span.nbytes = sum(getattr(block, "nbytes", 0) for block in made.values())
                    if self.timed is not None:
                        self.timed.note(span)
                values[step.output] = made
                del made
                for name in ending:
                    del values[name]
                    self.facts.pop(name, None)
            device.synchronize()
            self.comm.check()
            if self.timed is not None:
                self.timed.finish()
            results = {
                key: self._outside(values[key[0]][key[1:]], self.declared[key[0]].container)
                for key, rank in self.fixed.placed().items()
                if rank == self.comm.rank
            }
        return {key: device.hand_over(block) for key, block in results.items()}

    def _facts(self) -> defaultdict[str, defaultdict[Index, Facts]]:
        """Return the facts about blocks of inputs, by name, for collectives that want them."""
        found: defaultdict[str, defaultdict[Index, Facts]] = defaultdict(lambda: defaultdict(dict))
        for step in self.program.steps:
            finds = OPERATIONS[step.operation].finds_facts if isinstance(step, Collective) else None
            if finds is not None and finds(self.fixed.collectives[step.output]):
                for name in self.values.keys() & set(step.inputs) - found.keys():
                    found[name] |= {i: self.observer.facts(x) for i, x in self.values[name].items()}
        return found

    def _borrow(self) -> None:
        """Keep the inputs allocated until the lanes have passed their last use, views included."""
        for blocks in self.values.values():
            for index, block in blocks.items():
                blocks[index] = self.device.borrow(block)

    def _bring(self, step: Local | Collective) -> None:
        """Move blocks of inputs before their first use, if the plans say so."""
        inputs = {self.fixed.numbers[name]: self.values[name] for name in step.inputs}
        moves = [each for number in inputs for each in self.moves.pop(number, ())]
        if moves:
            received = ship(moves, self.comm, self.device, inputs)
            for each in moves:
                if each.source == self.comm.rank:
                    del inputs[each.value][each.index]
            for (number, index), block in received.items():
                inputs[number][index] = block

    def _run_collective(self, step: Collective, name: str, spent: Collection[str]) -> Blocks:
        """Run a collective on blocks in the device's memory that match the graph's declaration."""
        inputs = []
        for read in step.inputs:
            self._conform(read)
            layout = self.fixed.values[read].layout
            # a block that several ranks have computed belongs to the first of them
            blocks = self.values[read].items()
            own = ((i, b) for i, b in blocks if layout.owner(i) == self.comm.rank)
            inputs.append(Given(own, self.facts[read]))
        for read in spent:
            self.values[read].clear()  # so that the algorithm's references are the only ones

        def progress(done: int, steps: int) -> None:
            self.observer.progress(name, done, steps)

        run = OPERATIONS[step.operation].run
        plan = self.fixed.collectives[step.output]
        made = run(plan, self.comm, self.device, *inputs, progress=progress)
        self.device.join()  # before the inputs are freed
        if isinstance(made, tuple):
            made, detail = made
            self.observer.detail(step.output, detail)
        return made

    def _conform(self, name: str) -> None:
        """Convert the blocks of a value to the graph's declaration, in the device's memory."""
        value, blocks, shown = self.declared[name], self.values[name], label(name)
        was = dict(blocks)
        for index, block in was.items():
            # a collective's result may be on the device
            container = "cupy.ndarray" if self._on_device(block) else value.container
            declared = shown, value.dtype, value.block_shape(index), container
            blocks[index] = self.device.to_device(conforming(block, *declared))
        if any(blocks[index] is not block for index, block in was.items()):
            self.device.join()  # before the originals are freed

    def _call_functions(self, step: Local, name: str, spent: Collection[str]) -> Blocks:
        """Run the block functions of a step for the blocks of this rank.

        Kernels may overwrite blocks of ``spent`` values that only one of them reads.
        """
        self.observer.progress(name, 0, len(step.needs))
        making = self.fixed.makings[step.output]
        numbers = [self.fixed.numbers[name] for name in step.inputs]
        known = {
            number: self.values[name] for number, name in zip(numbers, step.inputs, strict=True)
        }
        received = {}
        if making.shipments:
            received = ship(making.shipments, self.comm, self.device, known)
        needs = step.blocks()
        mine = [index for index, ranks in making.ranks.items() if self.comm.rank in ranks]
        tasks = self.program.blockworks.tasks(step.output, mine)
        done: list[Index] = []
        uses = Counter(need for index in mine for need in needs[index])

        def block(at: int, place: Index, over: bool) -> Any:
            blocks = known[numbers[at]]
            if (numbers[at], place) in received:
                return self._outside(received[numbers[at], place], step.result.container)
            last = step.inputs[at] in spent and uses[at, place] == 1
            if over and last and is_alone(blocks, place):
                return Spare(blocks.pop(place))
            return self._outside(blocks[place], step.result.container)

        def make(index: Index) -> Array:
            over = bool(spent) and self.device.kind == "cpu" and overwrites(tasks[index])
            given = {
                (step.inputs[at], *place): block(at, place, over) for at, place in needs[index]
            }
            try:
                with self.observer.calling():
                    made = tasks[index](given)
            except CommError as error:  # from a gang within the function: this gang lost no rank
                raise GangError(f"{type(error).__name__}: {error}") from error
            done.append(index)
            self.observer.progress(name, len(done), len(mine))
            return made

        made = dict(zip(mine, self.device.each(make, mine), strict=True))
        self.device.join()  # before the received blocks are freed
        return made

    def _on_device(self, block: Array) -> bool:
        return self.device.kind == "cuda" and type(block).__module__.startswith("cupy")

    def _outside(self, block: Array, container: str) -> Array:
        """Return a block in the container that its block function expects."""
        move = container == NUMPY and self._on_device(block)
        return self.device.to_host(block) if move else block


def _timed(comm: Comm, device: Device, transport: Transport) -> TimedComm | None:
    """Return the communicator with clocks, ``None`` if nobody knows its times."""
    if device.kind == "cpu":
        return TimedComm(comm)
    if comm.size > 1 and transport == "nccl":
        from dask_dgpu.comm.nccl.timed import StreamTimedComm

        return StreamTimedComm(comm, device.watch())
    if comm.size > 1 and transport == "ucx":
        from dask_dgpu.comm.ucx.timed import LaneTimedComm

        return LaneTimedComm(comm, device.watch())
    return None


def _action(step: Local | Collective) -> str:
    moves = isinstance(step, Collective) and step.operation == "rechunk"
    return "transfer" if moves else "compute"
