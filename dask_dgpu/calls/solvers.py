"""Iterative solvers of linear equations, as loops on the workers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import Array

from dask_dgpu.arguments import as_array, check_chunk_sizes, check_dtype, expected, integer, real
from dask_dgpu.calls.jit import Step
from dask_dgpu.calls.loop import Loop, plain

Operator = Callable[[Array], Array] | int | None
"""A function, or the place of its matrix; ``None`` for the identity."""

COUNT = 5
"""The place of the number of iterations in the state."""


class Gradients:
    """The programs of conjugate gradients with an operator and a preconditioner.

    The state has the solution, the residual, the direction, the product of the residual and the
    preconditioned one, the tolerance, the number of iterations, and matrices.
    """

    def __init__(self, operator: Operator, preconditioner: Operator) -> None:
        self._operator = operator
        self._preconditioner = preconditioner
        self.start = Step(self._started, ())
        self.loop = Loop(self._goes_on, self._advanced)

    def clear(self) -> None:
        """Forget the programs."""
        self.start.clear()
        self.loop.clear()

    def _started(self, b: Array, x: Any, rtol: float, atol: float, *matrices: Array) -> list[Array]:
        norm = _norm(b)
        if isinstance(x, Array):
            x = da.where(norm == 0, da.zeros_like(x), x)
            r = b - _times(self._operator, x, matrices)
        else:
            x, r = da.zeros_like(b), b
        z = _times(self._preconditioner, r, matrices)
        tolerance = da.where(norm == 0, math.inf, da.maximum(rtol * norm, atol))
        return [x, r, z, _dot(r, z), tolerance]

    def _goes_on(self, x: Array, r: Array, p: Array, rho: Array, limit: Array, *_: Any) -> Array:
        return ~(_norm(r) < limit)  # also if it is not a number

    def _advanced(
        self, x: Array, r: Array, p: Array, rho: Array, tolerance: Array, k: Array, *matrices: Array
    ) -> list[Array]:
        q = _times(self._operator, p, matrices)
        alpha = rho / _dot(p, q)
        x, r = x + alpha * p, r - alpha * q
        z = _times(self._preconditioner, r, matrices)
        after = _dot(r, z)
        return [x, r, z + after / rho * p, after, tolerance, k + 1, *matrices]


def cg(
    A: Any,
    b: Array,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callable[[Array], Any] | None = None,
) -> tuple[Array, int]:
    """Solve ``A x = b`` by conjugate gradients, on the workers, as :func:`scipy.sparse.linalg.cg`.

    Parameters
    ----------
    A : dask.array.Array or callable
        A Hermitian, positive definite matrix, or a function that multiplies an array by it.
    b : array_like
        The right side: a vector, or of any shape if ``A`` is a function.
    x0 : array_like, optional
        The first guess, by default zero.
    rtol, atol : float, optional
        The loop ends if ``norm(b - A x) < max(rtol * norm(b), atol)``.
    maxiter : int, optional
        The most iterations, by default ten times the size of ``b``.
    M : dask.array.Array or callable, optional
        The preconditioner: an approximation of the inverse of ``A``.
    callback : callable, optional
        It is called with ``x`` after each iteration; these are then calls of their own.

    Returns
    -------
    x : dask.array.Array
        The solution, in the chunks of ``b``, or of the rows of the matrix.
    info : int
        0 if it converged, otherwise the number of iterations.

    Raises
    ------
    TypeError
        If ``A`` or ``M`` are neither arrays nor callable, or arguments are not of numbers.
    ValueError
        If shapes do not fit, chunk sizes are unknown, or ``maxiter`` is negative.

    See Also
    --------
    while_loop : The loop, for other methods.

    Notes
    -----
    The programs are kept for all matrices of the same chunks and dtype, and for functions that
    come from :func:`jit`.

    Examples
    --------
    >>> import dask.array as da, dask_dgpu as dgpu
    >>> x, info = dgpu.cg(4 * da.eye(6, chunks=3), da.ones(6, chunks=3))
    >>> x.compute().tolist(), info
    ([0.25, 0.25, 0.25, 0.25, 0.25, 0.25], 0)
    """
    b = as_array("b", b)
    parts = [each for each in (A, M) if isinstance(each, Array)]
    first = None if x0 is None else as_array("x0", x0)
    for name, each in (("A", A), ("M", M)):
        if not isinstance(each, Array):
            if not callable(each) and (each is not None or name == "A"):
                expected(name, "a Dask array or callable", each, TypeError)
        elif b.ndim != 1 or each.shape != 2 * b.shape:
            expected(name, f"a square matrix for b of shape {b.shape}", each)
    for name, each in (("b", b), ("x0", first)):
        if each is not None:
            check_dtype(name, each)
            check_chunk_sizes(name, each)
            if each.shape != b.shape:
                expected(name, f"of shape {b.shape}", each)
    kinds = [b, A if isinstance(A, Array) else plain(A)(b), *([] if first is None else [first])]
    dtype = np.result_type(*(each.dtype for each in kinds))
    if dtype.char not in "fdFD":
        dtype = np.result_type(dtype, np.float64)
    chunks = (A.chunks[0],) if isinstance(A, Array) else b.chunks
    b, guess = b.astype(dtype).rechunk(chunks), 0
    if first is not None:
        guess = first.astype(dtype).rechunk(chunks)
    most = 10 * b.size if maxiter is None else integer("maxiter", maxiter, 0)
    found = _gradients(A, M)
    state = found.start(b, guess, real("rtol", rtol), real("atol", atol), *parts)
    state += [0, *parts]
    done = 0
    if callback is None:
        state = found.loop.run(state, most)
        done = int(state[COUNT])
    while callback is not None and done < most:
        state = found.loop.run(state, 1)
        if int(state[COUNT]) == done:
            break
        done += 1
        callback(state[0])
    return state[0], done if done == most else 0


def _times(operator: Operator, x: Array, matrices: Sequence[Array]) -> Array:
    """Return what an operator makes of an array, in its chunks and dtype."""
    if operator is None:
        return x
    found = matrices[operator] @ x if isinstance(operator, int) else operator(x)
    if not isinstance(found, Array) or found.shape != x.shape:
        expected("the result of a function", f"a Dask array of shape {x.shape}", found)
    return found.astype(x.dtype).rechunk(x.chunks)


def _dot(x: Array, y: Array) -> Array:
    return ((x.conj() if x.dtype.kind == "c" else x) * y).sum()


def _norm(x: Array) -> Array:
    return da.sqrt(_dot(x, x).real)


def _gradients(A: Any, M: Any) -> Gradients:
    """Return the programs for these operators, kept unless they are functions but for ``jit``."""
    if all(each is None or isinstance(each, Array) for each in (A, M)):
        return _of_matrices(M is not None)
    created = Gradients(
        0 if isinstance(A, Array) else plain(A),
        None if M is None else int(isinstance(A, Array)) if isinstance(M, Array) else plain(M),
    )
    steps = [each for each in (A, M) if isinstance(each, Step)]
    if len(steps) < sum(map(callable, (A, M))):
        return created
    key = tuple(each if isinstance(each, Step) else type(each) for each in (A, M))
    found: Gradients = steps[0].loops.setdefault(key, created)
    return found


@functools.cache
def _of_matrices(preconditioned: bool) -> Gradients:
    return Gradients(0, 1 if preconditioned else None)
