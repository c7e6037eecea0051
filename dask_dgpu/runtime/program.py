"""What a gang runs: a list of steps on named values, the same on every rank.

A program is made when the graph is optimized and knows shapes and chunks only.
Where blocks are and how many ranks there are is known at the barrier; with that,
:func:`plans` fixes one plan for each collective, the same on every rank, and with
the plans where the blocks of every value are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from dask_dgpu.comm.bootstrap import Transport
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.runtime.collectives import ALGORITHMS
from dask_dgpu.runtime.value import Blocks, Placed, Value
from graph_opt.cost import Machine
from graph_opt.layout import Index

KEPT_PLANS = 32
"""Plans are pure and quick to look up; this many are remembered, with what ranks made of them."""


@dataclass(frozen=True)
class Local:
    """Change every block that a rank owns of a value.

    Parameters
    ----------
    function : str
        ``"to_device"`` and ``"to_host"`` move blocks; ``"transpose"`` takes views of them,
        and the value has the transposed layout from then on.
    value : str
        The value that is changed.
    axes : tuple of int, optional
        For ``"transpose"``: which axis each axis of the transpose is.
    """

    function: Literal["to_device", "to_host", "transpose"]
    value: str
    axes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Collective:
    """Run a distributed algorithm: ``output = algorithm(inputs)``.

    Parameters
    ----------
    algorithm : str
        A key of :data:`dask_dgpu.runtime.collectives.ALGORITHMS`.
    inputs : tuple of str
        The values it reads.
    output : str
        The value it makes.
    result : Value
        What that is; the plan chooses where its blocks are.
    task : object, optional
        What else the algorithm must know of what it does.
    """

    algorithm: str
    inputs: tuple[str, ...]
    output: str
    result: Value
    task: Any = None


@dataclass(frozen=True)
class Limits:
    """What a gang may take, in seconds and tries.

    Parameters
    ----------
    timeout : float
        Seconds without any progress after which a gang is given up.
    grace : float
        Seconds that a broken transfer waits for the news that a worker is lost.
    restarts : int
        How often a gang starts over after a loss.
    """

    timeout: float = 300.0
    grace: float = 10.0
    restarts: int = 3


@dataclass(frozen=True)
class Program:
    """Steps, in order, on named values.

    Parameters
    ----------
    name : str
        The array that the user knows, for messages.
    inputs : tuple of (str, Value)
        Values that exist before the first step.
    steps : tuple of Local or Collective
        Every rank does them in this order.
    output : str
        The value whose blocks are the result.
    kept : tuple of tuple of int, or None
        For each axis of the result, which of the blocks of the user's array it has;
        ``None`` when it is cut as the user's array is.
    machine : Machine
        Rates of a rank, from which plans are chosen.
    transport : str
        ``"gloo"``, ``"nccl"`` or ``"ucx"``.
    limits : Limits
        Time limits and tries.
    local_ranks : int
        Ranks of a gang that no Dask worker runs.
    room : float or None
        Bytes of a rank's device that may be used, ``None`` for no limit.
    """

    name: str
    inputs: tuple[tuple[str, Value], ...]
    steps: tuple[Local | Collective, ...]
    output: str
    kept: tuple[tuple[int, ...], ...] | None
    machine: Machine
    transport: Transport
    limits: Limits
    local_ranks: int = 1
    room: float | None = None

    def number(self, index: Index) -> Index:
        """Return the place in the user's array of a block of the result."""
        if self.kept is None:
            return index
        return tuple(kept[at] for kept, at in zip(self.kept, index, strict=True))


Owners = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Plans:
    """What is fixed when a program is launched, the same on every rank.

    Parameters
    ----------
    collectives : mapping of str to plan
        The plan of each collective, by the name of its output.
    values : mapping of str to Placed
        Where the blocks of each value are at the end.
    """

    collectives: Mapping[str, Any]
    values: Mapping[str, Placed]

    def placed(self, program: Program) -> dict[Index, int]:
        """Return the rank that ends up with each block of the user's array."""
        return {program.number(index): rank for index, rank in self.values[program.output].owners()}


def plans(program: Program, owners: Owners, size: int) -> Plans:
    """Fix the plan of each collective, for inputs whose blocks are where ``owners`` says.

    ``owners`` gives for each input the rank of each block there is, in row-major order.
    """
    values = {name: value.placed(owners[name]) for name, value in program.inputs}
    found: dict[str, Any] = {}
    limits = program.machine, program.room
    for step in program.steps:
        if isinstance(step, Collective):
            inputs = tuple(values[name] for name in step.inputs)
            plan = _planned(step.algorithm, inputs, step.result, step.task, size, *limits)
            found[step.output] = plan
            layout = ALGORITHMS[step.algorithm].layout(plan)
            values[step.output] = Placed(layout, step.result.dtype)
        elif step.function == "transpose":
            values[step.value] = values[step.value].transposed(step.axes)
    return Plans(found, values)


@lru_cache(maxsize=KEPT_PLANS)
def _planned(algorithm: str, inputs: tuple[Placed, ...], *arguments: Any) -> Any:
    """Return a plan; in a loop the same is asked for again and again."""
    return ALGORITHMS[algorithm].plan(inputs, *arguments)


def execute(
    program: Program,
    fixed: Plans,
    comm: Comm,
    device: Device,
    values: dict[str, Blocks],
    progress: Callable[[str, int, int], None] = lambda step, done, steps: None,
) -> Blocks:
    """Run a program as one rank; ``values`` holds its blocks of the inputs and is used up.

    Returns the blocks of the user's array that this rank ends up with. The host has
    waited for the device when this returns.
    """
    device.begin()
    last_use = {
        name: at
        for at, step in enumerate(program.steps)
        for name in (step.inputs if isinstance(step, Collective) else (step.value,))
    }
    for at, step in enumerate(program.steps):
        if isinstance(step, Local):
            values[step.value] = _changed(step, device, values.pop(step.value))
        else:
            name = step.output

            def report(done: int, steps: int, name: str = name) -> None:
                progress(name, done, steps)

            run, plan = ALGORITHMS[step.algorithm].run, fixed.collectives[name]
            values[name] = run(plan, comm, device, [values[value] for value in step.inputs], report)
        for name in [name for name in values if last_use.get(name) == at]:
            if name != program.output:
                device.synchronize()
                del values[name]
    device.synchronize()
    comm.check()
    return {program.number(index): block for index, block in values[program.output].items()}


def _changed(step: Local, device: Device, blocks: Blocks) -> Blocks:
    if step.function == "transpose":
        return {
            tuple(index[axis] for axis in step.axes): block.transpose(step.axes)
            for index, block in blocks.items()
        }
    function = getattr(device, step.function)
    for index in blocks:
        blocks[index] = function(blocks[index])
    return blocks
