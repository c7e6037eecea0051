"""What a gang runs: a list of steps on named values, the same on every rank.

A program is made when the graph is optimized and knows shapes and chunks only.
Where blocks are and how many ranks there are is known at the barrier; with that,
:func:`plans` fixes one plan for each collective, the same on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dask_dgpu.algorithms.summa import Operand, SummaPlan, plan_summa, summa_rank
from dask_dgpu.comm.bootstrap import Transport
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from graph_opt.cost import Machine
from graph_opt.layout import Cuts

Array = Any
Block = tuple[int, int]
Blocks = dict[Block, Array]


@dataclass(frozen=True)
class Matrix:
    """An input of a program: where it is cut, and what its blocks are."""

    rows: Cuts
    columns: Cuts
    dtype: str

    @property
    def grid(self) -> tuple[int, int]:
        """Number of blocks along each axis."""
        return len(self.rows) - 1, len(self.columns) - 1


@dataclass(frozen=True)
class Local:
    """Apply a block function to every block that a rank owns of a value."""

    function: Literal["to_device", "to_host"]
    value: str


@dataclass(frozen=True)
class Collective:
    """Run a distributed algorithm: ``output = algorithm(inputs)``."""

    algorithm: Literal["summa"]
    inputs: tuple[str, str]
    output: str
    dtype: str


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
    inputs : tuple of (str, Matrix)
        Values that exist before the first step.
    steps : tuple of Local or Collective
        Every rank does them in this order.
    output : str
        The value whose blocks are the result.
    rows, columns : tuple of int
        Which block rows and columns of the user's array the result has.
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
    inputs: tuple[tuple[str, Matrix], ...]
    steps: tuple[Local | Collective, ...]
    output: str
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    machine: Machine
    transport: Transport
    limits: Limits
    local_ranks: int = 1
    room: float | None = None

    def position(self, key: Any) -> Block:
        """Return the place in the result of the block that the user knows by ``key``."""
        return self.rows.index(key[1]), self.columns.index(key[2])


Owners = Mapping[str, tuple[int, ...]]


def plans(program: Program, owners: Owners, size: int) -> dict[str, SummaPlan]:
    """Fix the plan of each collective, by the name of its output."""
    matrices = dict(program.inputs)
    found: dict[str, SummaPlan] = {}
    for step in program.steps:
        if isinstance(step, Collective):
            a, b = (
                Operand(
                    matrices[name].rows, matrices[name].columns, matrices[name].dtype, owners[name]
                )
                for name in step.inputs
            )
            found[step.output] = plan_summa(
                a, b, step.dtype, size, program.machine, room=program.room
            )
    return found


def execute(
    program: Program,
    fixed: Mapping[str, SummaPlan],
    comm: Comm,
    device: Device,
    values: dict[str, Blocks],
    progress: Callable[[str, int, int], None] = lambda step, done, steps: None,
) -> Blocks:
    """Run a program as one rank; ``values`` holds its blocks of the inputs and is used up.

    Returns the blocks of the output that this rank ends up with. The host has
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
            function = getattr(device, step.function)
            blocks = values[step.value]
            for index in blocks:
                blocks[index] = function(blocks[index])
        else:
            name = step.output
            a, b = (values[value] for value in step.inputs)

            def report(done: int, steps: int, name: str = name) -> None:
                progress(name, done, steps)

            values[name] = summa_rank(fixed[name], comm, device, a, b, report)
            del a, b
        for name in [name for name in values if last_use.get(name) == at]:
            if name != program.output:
                device.synchronize()
                del values[name]
    device.synchronize()
    comm.check()
    return values[program.output]
