"""The rank program of Jacobi's iteration."""

from __future__ import annotations

from math import isfinite, sqrt
from typing import NamedTuple

from dask_dgpu.algorithms import Array, Blocks, Progress, no_progress
from dask_dgpu.algorithms.jacobi.plan import JacobiPlan, JacobiTask
from dask_dgpu.algorithms.stencil.rank import Tiles
from dask_dgpu.comm.protocol import Comm, Work
from dask_dgpu.kernels.device import Device
from graph_opt.model.layout import Index

DIVERGED = 1e3
"""The iteration stops at this multiple of the residual of the first iterate."""

CONVERGED = "converged"
MAX_ITERATIONS = "max_iterations"
NOT_FINITE = "not finite"
DIVERGING = "diverged"


class Outcome(NamedTuple):
    """The end of an iteration.

    ``history`` has pairs of the number of iterations and the relative residual after them; the last
    one belongs to the result.
    """

    reason: str
    history: tuple[tuple[int, float], ...]


def jacobi_rank(
    plan: JacobiPlan,
    comm: Comm,
    device: Device,
    u0: Blocks,
    rhs: Blocks,
    progress: Progress = no_progress,
) -> tuple[dict[Index, Array], Outcome]:
    """Iterate as one rank; ``progress`` counts sweeps.

    ``u0`` and ``rhs`` are the rank's blocks of the first iterate and of the right-hand side.
    Returns its blocks of the last iterate, and the outcome: the same on every rank, since the bits
    of an all-reduce are.
    """
    tiles = Tiles(plan.sweeps, comm, device)
    tiles.add(rhs, plan.rhs_into, -plan.task.damping)
    zero_change = _Sum(comm, device, tiles).value()
    tiles.load(u0)
    run = _Run(plan, comm, device, tiles, scale_of(plan.task, zero_change), progress)
    reason = run.iterate()
    return tiles.unload(), Outcome(reason, tuple(run.history))


class _Sum:
    """Squared changes of a sweep, summed over all ranks.

    With ``tiles``, an extra sweep computes them. Without, a sweep adds to ``change``.
    """

    def __init__(self, comm: Comm, device: Device, tiles: Tiles | None = None) -> None:
        self.comm, self.device = comm, device
        with device.computing():
            self.change = device.zeros(1, "float64")
        self._work: Work | None = None
        if tiles is not None:
            tiles.measure(self.change)
            self.start()

    def start(self) -> None:
        """Start the sum over all ranks, after the work on the compute lane."""
        with self.device.computing():
            ready = self.device.mark()
        with self.device.transferring():
            self.device.after(ready)
            self._work = self.comm.all_reduce(self.change)

    def value(self) -> float:
        """Return the sum; the host waits for it."""
        with self.device.transferring():
            if self._work is not None:
                self._work.wait()
            return float(self.device.to_host(self.change)[0])


def scale_of(task: JacobiTask, zero_change: float) -> float:
    """Return the factor from the changes of a sweep to a residual.

    It is relative to that of u = 0, given the squared changes of u = 0; absolute if they are zero.
    """
    return 1 / task.damping if zero_change == 0 else 1 / sqrt(zero_change)


class _Run:
    """The iteration: sweeps, and residuals that are read later."""

    def __init__(
        self,
        plan: JacobiPlan,
        comm: Comm,
        device: Device,
        tiles: Tiles,
        scale: float,
        progress: Progress,
    ) -> None:
        self.plan, self.comm, self.device, self.tiles = plan, comm, device, tiles
        self.scale, self.progress = scale, progress
        self.done = self.rounds = 0
        self.history: list[tuple[int, float]] = []

    def iterate(self) -> str:
        """Iterate; return the reason for the end."""
        while True:
            reason = self._record(self.done, _Sum(self.comm, self.device, self.tiles))
            if reason is not None:
                return reason
            self._sweep_on()

    def _sweep_on(self) -> None:
        """Sweep until a residual suggests the end, or all sweeps are done."""
        plan, most = self.plan, self.plan.task.max_iterations
        requested: tuple[int, _Sum] | None = None
        due = self.rounds + plan.pause(self.rounds)
        while self.done < most:
            sweeps = min(plan.sweeps.steps, most - self.done)
            self.rounds += 1
            sums = _Sum(self.comm, self.device) if self.rounds == due else None
            self.tiles.advance(sweeps, None if sums is None else sums.change)
            self.done += sweeps
            self.progress(self.done, most)
            if sums is not None:
                over = requested is not None and self._read(*requested)
                sums.start()
                requested = self.done - 1, sums
                due += plan.pause(self.rounds)
                if over:
                    break
        if requested is not None:
            self._read(*requested)

    def _read(self, done: int, sums: _Sum) -> bool:
        """Read a requested residual; return whether the iteration may end."""
        return self._record(done, sums) is not None

    def _record(self, done: int, sums: _Sum) -> str | None:
        """Record a residual; return the reason for the end, ``None`` to go on."""
        residual = sqrt(sums.value()) * self.scale
        self.history.append((done, residual))
        return verdict(self.plan.task, done, residual, self.history[0][1])


def verdict(task: JacobiTask, done: int, residual: float, first: float) -> str | None:
    """Return the reason for the end after a number of sweeps, ``None`` to go on."""
    if not isfinite(residual):
        return NOT_FINITE
    if residual <= task.tol:
        return CONVERGED
    if residual > DIVERGED * first:
        return DIVERGING
    return MAX_ITERATIONS if done >= task.max_iterations else None
