"""Conjugate gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import dask.array as da
from dask.array.core import Array

from dask_dgpu.arguments import integer, real
from dask_dgpu.calls.solvers.method import Method, dot, kept, norm, system
from dask_dgpu.kinds import of_functions_of_either_kind

COUNT = 5
"""The place of the number of iterations in the state."""


class Gradients(Method):
    """The programs of conjugate gradients with an operator and a preconditioner.

    The state has the solution, the residual, the direction, the product of the residual and the
    preconditioned one, the tolerance, the number of iterations, and matrices.
    """

    def started(self, b: Array, x: Any, rtol: float, atol: float, *matrices: Array) -> list[Array]:
        """Return the state without what the client adds, the number and the matrices."""
        size = norm(b)
        if isinstance(x, Array):
            x = da.where(size == 0, da.zeros_like(x), x)
            r = b - self.times(0, x, matrices)
        else:
            x, r = da.zeros_like(b), b
        z = self.times(1, r, matrices)
        tolerance = da.where(size == 0, math.inf, da.maximum(rtol * size, atol))
        return [x, r, z, dot(r, z), tolerance]

    def goes_on(self, x: Array, r: Array, p: Array, rho: Array, limit: Array, *_: Any) -> Array:
        """Return whether the residual is not below the tolerance, also if it is not a number."""
        return ~(norm(r) < limit)

    def advanced(
        self, x: Array, r: Array, p: Array, rho: Array, tolerance: Array, k: Array, *matrices: Array
    ) -> list[Array]:
        """Return the next state."""
        q = self.times(0, p, matrices)
        alpha = rho / dot(p, q)
        x, r = x + alpha * p, r - alpha * q
        z = self.times(1, r, matrices)
        after = dot(r, z)
        return [x, r, z + after / rho * p, after, tolerance, k + 1, *matrices]


@of_functions_of_either_kind
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
    gmres : For matrices that are not Hermitian.
    lsqr : For rectangular matrices.
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
    b, guess, matrices = system(A, b, x0, M)
    most = 10 * b.size if maxiter is None else integer("maxiter", maxiter, 0)
    method = kept(Gradients, A, M)
    state = method.start(b, guess, real("rtol", rtol), real("atol", atol), *matrices)
    state += [0, *matrices]
    done = 0
    if callback is None:
        state = method.loop.run(state, most)
        done = int(state[COUNT])
    while callback is not None and done < most:
        state = method.loop.run(state, 1)
        if int(state[COUNT]) == done:
            break
        done += 1
        callback(state[0])
    return state[0], done if done == most else 0
