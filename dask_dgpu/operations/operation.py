"""The description of an operation: rule, plan, rank program and cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dask_dgpu.operations.value import Blocks, Placed, Value
from graph_opt.dask_graph.parse import Rule
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Layout, dtype_named

Plan = Any
Progress = Callable[[int, int], None]
"""Called with the number of finished steps and of all."""


@dataclass(frozen=True)
class Cost:
    """What a plan takes.

    ``moved_bytes`` are received by the busiest rank. ``peak_bytes`` are the most on one rank: its
    share of inputs and output, and the workspace. ``text`` is the plan in a few words, and
    ``details`` are its plain values by name.
    """

    seconds: float
    moved_bytes: int
    peak_bytes: int
    text: str
    details: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Request:
    """All that a plan depends on.

    ``result`` is as the graph declares it, ``task`` is that of the piece, ``size`` the number of
    ranks, and ``room`` the free bytes on a rank's device, ``None`` for no limit. Requests are equal
    if their tasks are ``spelled`` alike: 0.0 is not -0.0, and 1 is not True.
    """

    inputs: tuple[Placed, ...]
    result: Value
    task: Any
    size: int
    machine: Machine
    room: float | None
    spelled: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spelled", repr(self.task))

    def excess(self, peak_bytes: float) -> float:
        """Return the bytes of a plan beyond those that are free."""
        return 0.0 if self.room is None else max(0.0, peak_bytes - self.room)


def product_flops(products: float, dtype: str) -> float:
    """Return the operations on real numbers for multiplications and additions of a dtype."""
    return products * (8 if dtype_named(dtype).kind == "c" else 2)


@dataclass(frozen=True)
class Operation:
    """All that gangs know of an operation.

    - ``plan(request)`` returns the plan.
    - ``layout(plan)`` returns the layout of the result.
    - ``run(plan, comm, device, *inputs, progress)`` computes this rank's blocks of the result from
      its blocks of the inputs. It may empty the mapping of an input that is ``spent``. It may
      return a pair: the blocks, and a small picklable detail for the user; that of rank 0 counts.
    - ``cost(plan, machine)`` predicts the cost.
    - ``flops(plan)`` returns the floating-point operations of all ranks, on real numbers, if these
      limit the operation and are known before it runs.
    - ``finds_facts(plan)`` says whether ``run`` keeps facts about blocks; by default not.
    - ``repeats(plan)`` says whether ``run`` has the same launches for all blocks, so a GPU may
      record them; by default so. It has not if the host reads results, or waits for other ranks.
    - ``buffers(plan)`` returns the bytes of a rank's message buffers; a host keeps small ones until
      the program ends.
    - ``rule`` finds the operation in Dask's layers; operations with a layer of our own need none.
    """

    plan: Callable[[Request], Plan]
    layout: Callable[[Plan], Layout]
    run: Callable[..., Blocks | tuple[Blocks, Any]]
    cost: Callable[[Plan, Machine], Cost]
    rule: Rule | None = None
    flops: Callable[[Plan], float] | None = None
    finds_facts: Callable[[Plan], bool] | None = None
    repeats: Callable[[Plan], bool] | None = None
    buffers: Callable[[Plan], int] | None = None
