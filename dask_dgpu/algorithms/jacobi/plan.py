"""The plan of Jacobi's iteration: sweeps, and how often their residual is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil

from dask_dgpu.algorithms.halo import Boundary
from dask_dgpu.algorithms.redistribute import RedistributePlan, plan_redistribute
from dask_dgpu.algorithms.redistribute import cost as move_cost
from dask_dgpu.algorithms.stencil import SweepPlan, plan_sweeps
from dask_dgpu.algorithms.stencil import cost as sweeps_cost
from dask_dgpu.algorithms.stencil import peak as sweeps_peak
from dask_dgpu.kernels.stencil import neighbours_mean
from graph_opt.model.bare import Bare
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Layout

CHECK_SHARE = 0.02
"""Share of the time that may go into asking for the residual."""

LEAST_ROUNDS = 30
"""Exchanges at least, if all iterations are done: only after one may it be over."""

LEAST_SHARE = 500
"""It is asked for after this part of what has been done at the earliest, lest checks pile up."""


@dataclass(frozen=True)
class JacobiTask:
    """What is solved, and when it is over.

    Parameters
    ----------
    dtype : str
        float32, float64, complex64 or complex128.
    dx : float
        Distance of grid points.
    boundary : tuple of str or number
        For each axis what is beyond the array.
    max_iterations : int
        Sweeps at most.
    tol : float
        Residual at most, relative to that of u = 0.
    """

    dtype: str
    dx: float
    boundary: tuple[Boundary, ...]
    max_iterations: int
    tol: float

    @property
    def operation(self) -> str:
        """Its name."""
        return "jacobi"

    @property
    def iterations(self) -> int:
        """Sweeps at most."""
        return self.max_iterations

    @property
    def operations(self) -> int:
        """Operations a sweep does for each element."""
        return 4 * self.ndim + 1

    @property
    def reach(self) -> tuple[int, ...]:
        """How far a sweep reads beyond each element, along each axis."""
        return (1,) * self.ndim

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.boundary)

    @property
    def damping(self) -> float:
        """What the residual is multiplied with to get the change of u in a sweep."""
        return self.dx**2 / (2 * self.ndim)


@dataclass(frozen=True)
class JacobiPlan(Bare):
    """A task on ranks.

    Parameters
    ----------
    task : JacobiTask
        What is solved.
    sweeps : SweepPlan
        How the iteration is swept.
    rhs : Layout
        Where the blocks of the right-hand side are.
    every : int
        Exchanges from one residual to the next; later on more, see ``pause``.
    """

    task: JacobiTask
    sweeps: SweepPlan
    rhs: Layout
    every: int

    def pause(self, rounds: int) -> int:
        """Return after how many more exchanges a residual is asked for, so many being done."""
        return max(self.every, rounds // LEAST_SHARE)

    @cached_property
    def rhs_into(self) -> RedistributePlan | None:
        """How blocks of the right-hand side become tiles; ``None`` where they are."""
        sweeps = self.sweeps
        if sweeps.tiles == self.rhs:
            return None
        return plan_redistribute(self.rhs, sweeps.tiles, sweeps.dtype, sweeps.size)


def plan_jacobi(
    u0: Layout,
    rhs: Layout,
    task: JacobiTask,
    size: int,
    machine: Machine,
    *,
    room: float | None = None,
) -> JacobiPlan:
    """Plan Jacobi's iteration.

    Parameters
    ----------
    u0, rhs : Layout
        Where the blocks of the first iterate and of the right-hand side are; of the same
        shape.
    task : JacobiTask
        What is solved.
    size : int
        Number of ranks.
    machine : Machine
        Rates of a rank.
    room : float, optional
        Bytes of a rank's device that may be used.

    Returns
    -------
    JacobiPlan
        The same on every rank: nothing but the arguments enters.
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
        every = ceil(machine.latency / (CHECK_SHARE * round_seconds))
    rounds = -(-task.max_iterations // sweeps.steps)
    # an iteration that is over is noticed two checks later
    every = max(1, min(every, rounds // 10))
    return JacobiPlan(task, sweeps, rhs, every)


def cost(plan: JacobiPlan, machine: Machine) -> float:
    """Predict the seconds of all iterations that are allowed."""
    task = plan.task
    seconds = sweeps_cost(plan.sweeps, task.max_iterations, machine, arrays=3)
    checks = 2 + task.max_iterations // (plan.every * plan.sweeps.steps)
    if plan.sweeps.size > 1:
        seconds += checks * machine.latency
    return seconds + (0.0 if plan.rhs_into is None else move_cost(plan.rhs_into, machine))


def peak(plan: JacobiPlan) -> int:
    """Return the most bytes that a rank holds."""
    return sweeps_peak(plan.sweeps, arrays=3)
