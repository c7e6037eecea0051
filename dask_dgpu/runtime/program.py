"""The program of a gang: a list of steps on named values, the same on every rank.

The graph optimizer creates it from shapes and chunks only. The places of blocks and the number of
ranks are known at the barrier. From these, :func:`plans` derives one plan for each collective, the
same on every rank, and the ranks of the blocks of every value.
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
"""Number of cached plans; ranks attach their own results to them."""


@dataclass(frozen=True)
class Limits:
    """Limits of a gang.

    Parameters
    ----------
    timeout : float
        Seconds without progress after which a gang fails.
    grace : float
        Seconds between a broken transfer and its failure, in which the scheduler may notice a
        lost worker.
    restarts : int
        Number of restarts after losses.
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
        The user's name of the array, for messages.
    inputs : tuple of (str, Value)
        The inputs.
    steps : tuple of Local or Collective
        The steps, in the order of execution on every rank.
    outputs : tuple of (str, tuple of tuple of int)
        The results, and the wanted blocks of each.
    machine : Machine
        Rates of a rank, for the choice of plans.
    transport : str
        ``"gloo"``, ``"nccl"`` or ``"ucx"``.
    limits : Limits
        Time limits and restarts.
    local_ranks : int
        Number of ranks without Dask workers.
    room : float or None
        Usable bytes of a rank's device, ``None`` for no limit.
    blockworks : Blockworks
        The block functions of :class:`Local` steps.
    plain : Plain, optional
        Dask's own tasks for the fallback; they are not pickled.
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
        """The names of the inputs."""
        return {name for name, _ in self.inputs}

    @property
    def ends(self) -> list[list[str]]:
        """For each step the values that no later step needs."""
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
        """Return the blocks of the inputs by their keys in Dask."""
        return {
            (name, *index): block
            for (name, value), given in zip(self.inputs, staged, strict=True)
            for index, block in zip(value.indices(), given, strict=True)
        }

    def block(self, key: Key) -> Key:
        """Return the block of a result's key: name of the value, and place.

        Dask and this package append suffixes to the names of some keys.
        """
        name = max((name for name, _ in self.outputs if key[0].startswith(name)), key=len)
        return (name, *key[1:])


Owners = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Plans:
    """The plans of a launched program, the same on every rank.

    Parameters
    ----------
    collectives : mapping of str to plan
        The plan of each collective, by the name of its output.
    values : mapping of str to Placed
        The ranks of inputs, of outputs of collectives, and of results.
    makings : mapping of str to Making
        The ranks of the output of each :class:`Local` step.
    """

    collectives: Mapping[str, Any]
    values: Mapping[str, Placed]
    makings: Mapping[str, Making]

    def placed(self, program: Program) -> dict[Key, int]:
        """Return the rank of each block of the results."""
        return {
            (name, *index): self.values[name].layout.owner(index)
            for name, blocks in program.outputs
            for index in blocks
        }


def plans(program: Program, owners: Owners, size: int) -> Plans:
    """Return the plans for inputs whose blocks are on the ranks ``owners``.

    ``owners`` has for each input the rank of each existing block, in row-major order.
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
    """Return a plan, from the cache within loops."""
    return OPERATIONS[operation].plan(inputs, *arguments)
