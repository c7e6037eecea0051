"""Jacobi's iteration for the discrete Poisson equation of Dask arrays.

Examples
--------
>>> import dask.array as da, dask_dgpu as dgpu
>>> rhs = da.ones((8, 9), chunks=4)
>>> u, info = dgpu.jacobi(da.zeros_like(rhs), rhs, tol=1e-8)
>>> info.converged, info.reason
(True, 'converged')
>>> float(abs(dgpu.stencil(u) - rhs).max()) < 1e-7
True
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from dask.array.core import Array, map_blocks
from dask.base import persist

from dask_dgpu.algorithms.stencil.jacobi import CONVERGED, Outcome, scale_of, verdict
from dask_dgpu.algorithms.stencil.plan import JacobiTask
from dask_dgpu.arguments import as_array, integer, positive
from dask_dgpu.array.chunks import beside
from dask_dgpu.array.stencil import (
    boundaries,
    check_array,
    sweeping,
    swept,
    thick,
    working_dtype,
)
from dask_dgpu.environment.facts import current_client
from dask_dgpu.errors import DgpuError
from dask_dgpu.kinds import of_either_kind
from dask_dgpu.optimizer import enabled_optimizer
from dask_dgpu.runtime import tasks
from graph_opt.dask_graph.internals import Task
from graph_opt.dask_graph.layers import array_of
from graph_opt.pieces.stencil import StencilPiece

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

Block = Any

SWEEPS = 20
"""Number of sweeps of plain Dask between two residuals."""


@dataclass(frozen=True)
class JacobiInfo:
    """The end of an iteration and its residuals.

    Parameters
    ----------
    iterations : int
        Number of sweeps.
    converged : bool
        Whether the residual of the returned array, computed again at the end, is at most
        ``tol``.
    reason : {"converged", "max_iterations", "not finite", "diverged"}
        Why it ended.
    residuals : tuple of float
        Residuals relative to that of u = 0. The last one is that of the returned array.
    checked : tuple of int
        The number of sweeps before each residual.
    """

    iterations: int
    converged: bool
    reason: str
    residuals: tuple[float, ...]
    checked: tuple[int, ...]

    @classmethod
    def of(cls, outcome: Outcome) -> JacobiInfo:
        """Return the public form of an outcome."""
        checked, residuals = zip(*outcome.history, strict=True)
        return cls(checked[-1], outcome.reason == CONVERGED, outcome.reason, residuals, checked)


@of_either_kind
def jacobi(
    u0: Any,
    rhs: Any,
    *,
    dx: float = 1.0,
    boundary: str | complex | Sequence[str | complex] = "zero",
    max_iterations: int = 1000,
    tol: float = 1e-6,
) -> tuple[Array, JacobiInfo]:
    """Solve ``laplacian(u) = rhs`` by Jacobi's iteration; computed immediately.

    Parameters
    ----------
    u0 : array_like
        The first iterate: a Dask array of one axis or more, or input of
        ``dask.array.asarray``.
    rhs : array_like
        The right-hand side, of the same shape.
    dx : float, optional
        Distance of two grid points, along all axes.
    boundary : str, number or sequence of these, optional
        The value one grid point beyond the array, for all axes or for each of them:
        ``"zero"`` or another number, ``"periodic"``, ``"reflect"`` or ``"nearest"`` (both
        the value at the edge), or ``"mirror"``.
    max_iterations : int, optional
        Limit of the number of sweeps.
    tol : float, optional
        Largest residual of a solution: the 2-norm of ``laplacian(u) - rhs``, divided by that
        of u = 0 unless that is 0.

    Returns
    -------
    u : dask.array.Array
        The last iterate, persisted, with the shape and the chunks of ``u0`` without empty
        ones. Its dtype is float32, float64, complex64 or complex128, depending on both arrays.
    info : JacobiInfo
        Iterations, residuals, and whether it converged.

    Raises
    ------
    ValueError
        If shapes differ, ``dx`` or ``tol`` are not positive, the dtype cannot represent the
        square of ``dx``, ``max_iterations`` is negative, a boundary is unknown or complex for
        real arrays, there are no elements, or chunk sizes are unknown.
    TypeError
        If an array is not of numbers, or ``max_iterations`` is no integer.

    See Also
    --------
    stencil : Apply a stencil a fixed number of times.

    Notes
    -----
    Every sweep sets ``u[i]`` to the mean of its neighbours minus ``dx**2 / (2 d) * rhs[i]``
    ([1]_); the Laplacian of d axes has 2 d + 1 points. Workers exchange ghost cells once for
    several sweeps. The residual is evaluated every few sweeps and read two checks later, so no
    sweep waits for it, and a few more sweeps run than needed. Values that are not finite, and
    residuals that grow by a factor of 1000, end the iteration. A grid without a fixed boundary
    value has solutions, up to a constant, only if the sum of ``rhs`` is 0.

    References
    ----------
    .. [1] Y. Saad, "Iterative Methods for Sparse Linear Systems", 2nd edition, SIAM
       (2003).

    Examples
    --------
    >>> import dask.array as da, dask_dgpu as dgpu
    >>> rhs = da.zeros(5, chunks=2)
    >>> u, info = dgpu.jacobi(rhs, rhs, boundary=3, tol=1e-9)
    >>> u.compute().round(6).tolist()
    [3.0, 3.0, 3.0, 3.0, 3.0]
    """
    first, right = as_array("u0", u0), as_array("rhs", rhs)
    check_array("u0", first)
    check_array("rhs", right)
    if first.shape != right.shape:
        raise ValueError(
            f"expected u0 and rhs of the same shape, got {first.shape} and {right.shape}"
        )
    if not math.prod(first.shape):
        raise ValueError(f"expected u0 with elements, got the shape {first.shape}")
    dtype = working_dtype(np.result_type(first.dtype, right.dtype), ())
    task = JacobiTask.of(
        dtype.name,
        _distance(dx, first.ndim, dtype),
        boundaries(boundary, first.ndim, dtype),
        integer("max_iterations", max_iterations, 0),
        positive("tol", tol),
    )
    some = tuple(tuple(size for size in sizes if size) for sizes in first.chunks)
    first = first.astype(dtype).rechunk(some)
    right = right.astype(dtype).rechunk(first.chunks)
    u = sweeping("jacobi", (first, right), first.chunks, task, expand)
    outcome = None
    if _in_a_gang(u):
        with suppress(NoGangError):  # the gang was left to Dask
            (u,) = persist(u)
            outcome = _outcome_of(u)
    if outcome is None:
        u, outcome = in_rounds(first, right, task)
    return u, JacobiInfo.of(outcome)


def _distance(dx: Any, ndim: int, dtype: np.dtype[Any]) -> float:
    """Return the distance; raise if the dtype cannot represent its square."""
    distance, limits = positive("dx", dx), np.finfo(dtype)
    if not limits.tiny <= distance * distance / (2 * ndim) <= limits.max:
        raise ValueError(
            f"expected dx**2 / {2 * ndim} to be a normal number of {dtype}, got dx = {dx!r}"
        )
    return distance


def _in_a_gang(u: Array) -> bool:
    """Whether the optimizer creates a gang for an iteration."""
    optimizer = enabled_optimizer()
    if optimizer is None:
        return False
    pieces = optimizer.calibrated(current_client()).pieces(u.dask, u.__dask_keys__())
    return any(piece.output.name == u.name for piece in pieces)


def _outcome_of(u: Array) -> Outcome | None:
    """Wait for a persisted array; return the outcome from its gang's record, if it is kept."""
    client = current_client()
    futures: list[Any] = []
    if client is not None:
        from distributed import futures_of, wait

        futures = futures_of(u)
    if not futures:
        outcome: Outcome | None = dict(tasks.details.copy()).get(u.name)
        return outcome
    wait(futures)
    for future in futures:
        if future.status != "finished":
            future.result()  # raises
    detail = futures[0].client.run_on_scheduler(_recorded, name=u.name)
    return None if detail is None else pickle.loads(detail)


def _recorded(name: str, dask_scheduler: Scheduler) -> Any:
    plugin: Any = dask_scheduler.plugins[tasks.PLUGIN]
    return plugin.records.detail(name)


def in_rounds(u0: Array, rhs: Array, task: JacobiTask) -> tuple[Array, Outcome]:
    """Iterate by plain Dask: some sweeps, then a residual, and so on."""
    u = thick(u0, task.taps)
    added = (rhs * np.dtype(task.dtype).type(-task.damping)).rechunk(u.chunks, method="tasks")
    u, added = persist(u, map_blocks(beside, added, u, dtype=u.dtype, meta=added._meta))

    def sweep(x: Array) -> Array:
        return swept(x, task.taps, task.boundary, added)

    zero = u.map_blocks(np.zeros_like, dtype=u.dtype, meta=u._meta)
    scale = scale_of(task, float(_change(zero, sweep(zero)).compute()))
    history: list[tuple[int, float]] = []
    done = 0
    while True:
        u, change = persist(u, _change(u, sweep(u)))
        history.append((done, math.sqrt(float(change.compute())) * scale))
        reason = verdict(task, done, history[-1][1], history[0][1])
        if reason is not None:
            break
        sweeps = min(SWEEPS, task.iterations - done)
        for _ in range(sweeps):
            u = sweep(u)
        done += sweeps
    u = Array(u.dask, u.name, u.chunks, dtype=u.dtype, meta=u0._meta)
    (u,) = persist(u.rechunk(u0.chunks, method="tasks"))
    return u, Outcome(reason, tuple(history))


def _change(before: Array, after: Array) -> Array:
    """Return the sum of the squared differences."""
    sums = map_blocks(
        _squares,
        before,
        after,
        chunks=tuple((1,) * blocks for blocks in before.numblocks),
        dtype="float64",
        meta=np.empty((0,) * before.ndim),
    )
    return sums.sum()


def _squares(before: Block, after: Block) -> Block:
    difference = after - before
    wide = difference.astype(np.result_type(difference.dtype, np.float64))
    return np.full((1,) * before.ndim, float((abs(wide) ** 2).sum()))


class NoGangError(DgpuError):
    """An iteration as a task of plain Dask, which has to use :func:`in_rounds` instead."""


def expand(piece: StencilPiece) -> Array:
    """Return an array whose tasks raise :class:`NoGangError`.

    ``jacobi`` iterates in rounds if it expects no gang, or if the gang is left to Dask later.
    """
    keys = [(piece.output.name, *index) for index in piece.output.indices]
    return array_of(piece.output, {key: Task(key, _refuse) for key in keys})


def _refuse() -> Block:
    raise NoGangError("expected a gang for Jacobi's iteration, got a task of plain Dask")
