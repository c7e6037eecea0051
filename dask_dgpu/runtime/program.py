"""What a gang runs: a list of steps on named values, the same on every rank.

A program is made when the graph is optimized and knows shapes and chunks only.
Where blocks are and how many ranks there are is known at the barrier; with that,
:func:`plans` fixes one plan for each collective, the same on every rank, and with
the plans where the blocks of every value are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from dask_dgpu.comm.bootstrap import Transport
from dask_dgpu.operations import OPERATIONS
from dask_dgpu.operations.step import Collective, Local
from dask_dgpu.operations.value import Placed, Value
from dask_dgpu.runtime.blockwork import Blockworks
from dask_dgpu.runtime.placement import Making, Placement
from graph_opt.dask_graph.plain import Plain
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Index

Key = tuple[Any, ...]

KEPT_PLANS = 32
"""Plans are pure and quick to look up; this many are remembered, with what ranks made of them."""


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
    outputs : tuple of (str, tuple of tuple of int)
        The values that are results, and which of their blocks.
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
    blockworks : Blockworks
        The block functions of the steps that are :class:`Local`.
    plain : Plain, optional
        What Dask would do instead. It stays where the program was made.
    """

    name: str
    inputs: tuple[tuple[str, Value], ...]
    steps: tuple[Local | Collective, ...]
    outputs: tuple[tuple[str, tuple[Index, ...]], ...]
    machine: Machine
    transport: Transport
    limits: Limits
    local_ranks: int = 1
    room: float | None = None
    blockworks: Blockworks = field(default_factory=Blockworks)
    plain: Plain | None = field(default=None, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"plain": None}

    @property
    def given(self) -> set[str]:
        """Names of the values that others have made."""
        return {name for name, _ in self.inputs}

    @property
    def ends(self) -> list[list[str]]:
        """For each step the values that nobody needs after it."""
        last = {
            name: at for at, step in enumerate(self.steps) for name in (step.output, *step.inputs)
        }
        results = {name for name, _ in self.outputs}
        found: list[list[str]] = [[] for _ in self.steps]
        for name, at in last.items():
            if name not in results:
                found[at].append(name)
        return found

    def named(self, staged: Sequence[list[Any]]) -> dict[Key, Any]:
        """Return the blocks of the inputs by the keys that they have in Dask."""
        return {
            (name, *index): block
            for (name, value), given in zip(self.inputs, staged, strict=True)
            for index, block in zip(value.indices(), given, strict=True)
        }

    def block(self, key: Key) -> Key:
        """Return the block that a key of a result stands for: name of the value, and place.

        Blocks that nobody asked for by name have marks appended to it, by Dask too.
        """
        name = max((name for name, _ in self.outputs if key[0].startswith(name)), key=len)
        return (name, *key[1:])


Owners = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Plans:
    """What is fixed when a program is launched, the same on every rank.

    Parameters
    ----------
    collectives : mapping of str to plan
        The plan of each collective, by the name of its output.
    values : mapping of str to Placed
        Where inputs are, and outputs of collectives, and the results.
    makings : mapping of str to Making
        Where each value that a :class:`Local` makes is made.
    """

    collectives: Mapping[str, Any]
    values: Mapping[str, Placed]
    makings: Mapping[str, Making]

    def placed(self, program: Program) -> dict[Key, int]:
        """Return the rank that ends up with each block of the results."""
        return {
            (name, *index): self.values[name].layout.owner(index)
            for name, blocks in program.outputs
            for index in blocks
        }


def plans(program: Program, owners: Owners, size: int) -> Plans:
    """Fix the plan of each collective, for inputs whose blocks are where ``owners`` says.

    ``owners`` gives for each input the rank of each block there is, in row-major order.
    """
    placement = Placement(size)
    values: dict[str, Placed] = {}
    for name, value in program.inputs:
        values[name] = value.placed(owners[name])
        placement.put(name, value, values[name].layout)
    found: dict[str, Any] = {}
    limits = program.machine, program.room
    given, ends = program.given, program.ends
    for at, step in enumerate(program.steps):
        if isinstance(step, Local):
            placement.make(step.output, step.result, step.inputs, step.blocks(), step.once)
            continue
        inputs = tuple(
            replace(placement.placed(name), spent=name in ends[at] and name not in given)
            for name in step.inputs
        )
        plan = _planned(step.operation, inputs, step.result, step.task, size, *limits)
        layout = OPERATIONS[step.operation].layout(plan)
        found[step.output] = plan
        values.update(zip(step.inputs, inputs, strict=True))
        values[step.output] = Placed(layout, step.result.dtype)
        placement.put(step.output, step.result, layout)
    values |= {name: placement.placed(name) for name, _ in program.outputs}
    made = [step.output for step in program.steps if isinstance(step, Local)]
    return Plans(found, values, {name: placement.making(name) for name in made})


@lru_cache(maxsize=KEPT_PLANS)
def _planned(operation: str, inputs: tuple[Placed, ...], *arguments: Any) -> Any:
    """Return a plan; in a loop the same is asked for again and again."""
    return OPERATIONS[operation].plan(inputs, *arguments)
