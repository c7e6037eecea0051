"""The description of an operation: rule, plan, rank program and cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dask_dgpu.operations.value import Blocks, Placed, Value
from graph_opt.dask_graph.parse import Rule
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Layout

Plan = Any
Progress = Callable[[int, int], None]
"""Called with the number of finished steps and of all."""


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


@dataclass(frozen=True)
class Request:
    """All that a plan depends on.

    Parameters
    ----------
    inputs : tuple of Placed
        Layouts and dtypes of the inputs.
    result : Value
        The result as the graph declares it.
    task : object
        The task of the piece.
    size : int
        Number of ranks.
    machine : Machine
        Rates of a rank.
    room : float or None
        Free bytes on a rank's device, ``None`` for no limit.
    """

    inputs: tuple[Placed, ...]
    result: Value
    task: Any
    size: int
    machine: Machine
    room: float | None


@dataclass(frozen=True)
class Operation:
    """All that gangs know of an operation.

    Parameters
    ----------
    plan : callable
        ``plan(request)`` is the plan.
    layout : callable
        ``layout(plan)`` is the layout of the result.
    run : callable
        ``run(plan, comm, device, *inputs, progress)`` computes this rank's blocks of the result
        from its blocks of the inputs. It may empty the mapping of an input whose place is
        ``spent``. It may return a pair: the blocks, and a small picklable detail for the user;
        that of rank 0 counts.
    cost : callable
        ``cost(plan, machine)`` predicts a :class:`Cost`.
    rule : Rule, optional
        Finds the operation in Dask's layers; an operation with a layer of its own needs none.
    """

    plan: Callable[[Request], Plan]
    layout: Callable[[Plan], Layout]
    run: Callable[..., Blocks | tuple[Blocks, Any]]
    cost: Callable[[Plan, Machine], Cost]
    rule: Rule | None = None
