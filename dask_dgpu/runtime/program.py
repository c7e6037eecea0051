"""What a gang runs: a list of steps on named values, the same on every rank.

A program is made when the graph is optimized and knows shapes and chunks only. The
places of blocks and the number of ranks are known when it is launched; then
:mod:`dask_dgpu.runtime.plans` plans it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dask_dgpu.comm.bootstrap import Transport
from dask_dgpu.operations.step import Collective, Local
from dask_dgpu.operations.value import Value
from dask_dgpu.runtime.blockwork import Blockworks
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
    def names(self) -> tuple[str, ...]:
        """All values in order: inputs, then the outputs of steps. Plans know their numbers."""
        return (*(name for name, _ in self.inputs), *(step.output for step in self.steps))

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
