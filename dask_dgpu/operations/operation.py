"""The description of an operation: rule, plan, rank program and cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.operations.value import Blocks, Placed, Value
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Layout
from graph_opt.passes.rewrite import Rule

Plan = Any
Report = Callable[[int, int], None]


@dataclass(frozen=True)
class Cost:
    """What a plan takes.

    Parameters
    ----------
    seconds : float
        Predicted time.
    moved_bytes : int
        Bytes that the busiest rank receives.
    peak_bytes : int
        Most bytes on one rank: its share of inputs and output, and the workspace.
    text : str
        The plan in a few words.
    details : tuple of (str, value)
        The plan as plain values.
    """

    seconds: float
    moved_bytes: int
    peak_bytes: int
    text: str
    details: tuple[tuple[str, Any], ...]


class MakePlan(Protocol):
    """Plans an algorithm: the same on every rank, for nothing but the arguments enters."""

    def __call__(
        self,
        inputs: Sequence[Placed],
        result: Value,
        task: Any,
        size: int,
        machine: Machine,
        room: float | None,
    ) -> Plan:
        """Return the plan for these inputs on ``size`` ranks."""


class RunPlan(Protocol):
    """Runs an algorithm as one rank.

    It may empty the mappings of inputs whose place it was told to be ``spent``.
    """

    def __call__(
        self,
        plan: Plan,
        comm: Comm,
        device: Device,
        inputs: Sequence[Blocks],
        report: Report,
    ) -> Blocks:
        """Return the blocks of the result that this rank ends up with."""


@dataclass(frozen=True)
class Operation:
    """All that gangs know of an operation.

    Parameters
    ----------
    plan : callable
        Returns the plan for placed inputs.
    layout : callable
        ``layout(plan)`` is the layout of the result.
    run : callable
        Runs a plan as one rank.
    cost : callable
        ``cost(plan, machine)`` predicts a :class:`Cost`.
    match : callable, optional
        The rule that finds the operation in Dask's layers; an operation with a layer of its
        own needs none.
    """

    plan: MakePlan
    layout: Callable[[Plan], Layout]
    run: RunPlan
    cost: Callable[[Plan, Machine], Cost]
    match: Rule | None = None
