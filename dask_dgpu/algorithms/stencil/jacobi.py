"""Jacobi's iteration for ``laplacian(u) = rhs`` on a uniform grid of d axes.

::

    u'[i] = ( sum of the 2 d neighbours of u[i]  -  dx**2 rhs[i] ) / (2 d)

    sweeps      |--------|--------|--------|--------|---- ...
    residual of     ^ summed by the sweep after it
    all-reduce       |.........|
    read                       ^ and if it is small: recomputed for the final u

It is a stencil with an added array. ``u' - u`` is the residual ``laplacian(u) - rhs`` times
``dx**2 / (2 d)``, so every few exchanges one sweep also sums its squares. Their all-reduce
overlaps with the next sweeps, and its result is read when the next residual is due. An iteration
stops when the residual is small, but counts as converged only if the recomputed residual of the
returned u is small too.

The iteration converges for constant boundaries. If all are periodic or mirrored, a solution
exists only if the sum of ``rhs`` is 0. On a periodic grid of even lengths the alternating part
of u never decays ([1]_).

References
----------
.. [1] Y. Saad, "Iterative Methods for Sparse Linear Systems", 2nd edition, SIAM (2003).
"""

from __future__ import annotations

from math import isfinite, sqrt
from typing import NamedTuple, cast

from dask_dgpu.algorithms import Array, Blocks, Progress, no_progress
from dask_dgpu.algorithms.stencil.plan import JacobiTask, SweepPlan
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
    plan: SweepPlan,
    comm: Comm,
    device: Device,
    u0: Blocks,
    rhs: Blocks,
    *,
    progress: Progress = no_progress,
) -> tuple[dict[Index, Array], Outcome]:
    """Iterate as one rank; ``progress`` counts sweeps.

    ``u0`` and ``rhs`` are the rank's blocks of the first iterate and of the right-hand side.
    Returns its blocks of the last iterate, and the outcome: the same on every rank, since the bits
    of an all-reduce are.
    """
    task, tiles = cast(JacobiTask, plan.task), Tiles(plan, comm, device)
    tiles.add(rhs, -task.damping)
    zero_change = _Sum(tiles, measured=True).value()
    tiles.load(u0)
    run = _Run(task, tiles, scale_of(task, zero_change), progress)
    reason = run.iterate()
    return tiles.unload(), Outcome(reason, tuple(run.history))


class _Sum:
    """Squared changes of a sweep, summed over all ranks.

    If it is ``measured``, an extra sweep computes them. Else a sweep adds to ``change``.
    """

    def __init__(self, tiles: Tiles, *, measured: bool = False) -> None:
        self.comm, self.device = tiles.comm, tiles.device
        with self.device.computing():
            self.change = self.device.zeros(1, "float64")
        self._work: Work | None = None
        if measured:
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

    def __init__(self, task: JacobiTask, tiles: Tiles, scale: float, progress: Progress) -> None:
        self.task, self.tiles, self.scale, self.progress = task, tiles, scale, progress
        self.done = self.rounds = 0
        self.history: list[tuple[int, float]] = []

    def iterate(self) -> str:
        """Iterate; return the reason for the end."""
        while True:
            reason = self._record(self.done, _Sum(self.tiles, measured=True))
            if reason is not None:
                return reason
            self._sweep_on()

    def _sweep_on(self) -> None:
        """Sweep until a residual suggests the end, or all sweeps are done."""
        plan, most = self.tiles.plan, self.task.iterations
        requested: tuple[int, _Sum] | None = None
        due = self.rounds + plan.pause(self.rounds)
        while self.done < most:
            sweeps = min(plan.steps, most - self.done)
            self.rounds += 1
            sums = _Sum(self.tiles) if self.rounds == due else None
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
        return verdict(self.task, done, residual, self.history[0][1])


def verdict(task: JacobiTask, done: int, residual: float, first: float) -> str | None:
    """Return the reason for the end after a number of sweeps, ``None`` to go on."""
    if not isfinite(residual):
        return NOT_FINITE
    if residual <= task.tol:
        return CONVERGED
    if residual > DIVERGED * first:
        return DIVERGING
    return MAX_ITERATIONS if done >= task.iterations else None
