"""The program of a gang: a list of steps on named values, the same on every rank.

The graph optimizer creates it from shapes and chunks only. The places of blocks and the number of
ranks are known at launch; then :mod:`dask_dgpu.runtime.plans` plans it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dask_dgpu.comm.bootstrap import Transport
from dask_dgpu.operations.value import Collective, Local, Value
from dask_dgpu.runtime.blockwork import Blockworks
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
    def names(self) -> tuple[str, ...]:
        """All values in order: inputs, then the outputs of steps. Plans know their numbers."""
        return (*(name for name, _ in self.inputs), *(step.output for step in self.steps))

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

    @property
    def spent(self) -> list[set[str]]:
        """For each step its inputs that no later step reads, except the program's inputs."""
        steps, given = zip(self.steps, self.ends, strict=True), self.given
        return [({*step.inputs} & {*ending}) - given for step, ending in steps]

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
