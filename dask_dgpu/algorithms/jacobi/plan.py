"""The plan of Jacobi's iteration: sweeps, and the frequency of residuals."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil

from dask_dgpu.algorithms.halo.plan import Boundary
from dask_dgpu.algorithms.redistribute.plan import RedistributePlan
from dask_dgpu.algorithms.redistribute.plan import cost as move_cost
from dask_dgpu.algorithms.stencil.plan import SweepPlan, plan_sweeps
from dask_dgpu.algorithms.stencil.plan import cost as sweeps_cost
from dask_dgpu.algorithms.stencil.plan import peak as sweeps_peak
from dask_dgpu.kernels.stencil import neighbours_mean
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Bare, Layout

CHECK_SHARE = 0.02
"""Maximum share of the time for residuals."""

LEAST_ROUNDS = 30
"""Minimum number of exchanges of all iterations: the iteration ends only after one."""

LEAST_SHARE = 500
"""The pause between residuals is at least this fraction of the exchanges so far."""


@dataclass(frozen=True)
class JacobiTask:
    """The equation, and the criteria for the end.

    ``tol`` is the maximum residual relative to that of u = 0, ``dx`` the grid spacing.
    """

    dtype: str
    dx: float
    boundary: tuple[Boundary, ...]
    max_iterations: int
    tol: float

    @property
    def operation(self) -> str:
        """The name of the operation."""
        return "jacobi"

    @property
    def iterations(self) -> int:
        """Maximum number of sweeps."""
        return self.max_iterations

    @property
    def operations(self) -> int:
        """Floating-point operations of a sweep for each element."""
        return 4 * self.ndim + 1

    @property
    def reach(self) -> tuple[int, ...]:
        """How far a sweep reads around each element, along each axis."""
        return (1,) * self.ndim

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.boundary)

    @property
    def damping(self) -> float:
        """The change of u in a sweep divided by the residual."""
        return self.dx**2 / (2 * self.ndim)


@dataclass(frozen=True)
class JacobiPlan(Bare):
    """A task on ranks.

    ``rhs`` is the layout of the right-hand side, ``every`` the minimum number of exchanges between
    residuals, see :meth:`pause`.
    """

    task: JacobiTask
    sweeps: SweepPlan
    rhs: Layout
    every: int

    def pause(self, rounds: int) -> int:
        """Return the number of exchanges until the next residual."""
        return max(self.every, rounds // LEAST_SHARE)

    @cached_property
    def rhs_into(self) -> RedistributePlan | None:
        """The redistribution of the right-hand side to tiles; ``None`` if it is in place."""
        return self.sweeps.move(self.rhs, self.sweeps.tiles)


def plan_jacobi(
    u0: Layout,
    rhs: Layout,
    task: JacobiTask,
    size: int,
    machine: Machine,
    *,
    room: float | None = None,
) -> JacobiPlan:
    """Plan Jacobi's iteration; ``u0`` and ``rhs`` have the same shape.

    ``room`` are the bytes of free memory on a rank's device. The plan is the same on every rank.
    """
    sweeps = plan_sweeps(
        u0,
        task.dtype,
        neighbours_mean(task.ndim),
        task.boundary,
        task.max_iterations,
        size,
        machine,
        arrays=3,
        most_steps=max(1, task.max_iterations // LEAST_ROUNDS),
        room=room,
    )
    round_seconds = sweeps_cost(sweeps, sweeps.steps, machine, arrays=3)
    every = 1
    if size > 1 and round_seconds:
        every = ceil(machine.collective_seconds(size) / (CHECK_SHARE * round_seconds))
    rounds = -(-task.max_iterations // sweeps.steps)
    # the end is noticed two checks late
    every = max(1, min(every, rounds // 10))
    return JacobiPlan(task, sweeps, rhs, every)


def cost(plan: JacobiPlan, machine: Machine) -> float:
    """Predict the seconds of all allowed iterations."""
    task = plan.task
    seconds = sweeps_cost(plan.sweeps, task.max_iterations, machine, arrays=3)
    checks = 2 + task.max_iterations // (plan.every * plan.sweeps.steps)
    if plan.sweeps.size > 1:
        seconds += checks * machine.collective_seconds(plan.sweeps.size)
    return seconds + (0.0 if plan.rhs_into is None else move_cost(plan.rhs_into, machine))


def peak(plan: JacobiPlan) -> int:
    """Return the most bytes on a rank."""
    return sweeps_peak(plan.sweeps, arrays=3)
