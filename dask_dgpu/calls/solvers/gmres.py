"""Generalized minimal residuals, restarted.

The basis is made orthogonal twice by classical Gram-Schmidt: two sums over all ranks in each
iteration, not one for each vector. The preconditioner acts from the right, so that the residual
that is minimized is that of the equation. Its norm needs no rotations: if ``t H = 0`` for the
Hessenberg matrix ``H`` and ``t[0] = 1``, the least residual is ``beta / norm(t)`` [1]_.

References
----------
.. [1] E. H. Ayachour, "A fast implementation for GMRES method", J. Comput. Appl. Math. 159 (2003).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import Array

from dask_dgpu.arguments import integer, real
from dask_dgpu.calls.jit import Step
from dask_dgpu.calls.solvers.method import Method, conj, kept, norm, system
from dask_dgpu.kinds import of_functions_of_either_kind

FOUND = slice(6, 9)
"""The places of the basis, the matrix and the right side in the state."""


class Residuals(Method):
    """The programs of a cycle: its start, iterations, and the solution from them.

    The state has the norm of the least residual, the tolerance, the number of iterations, the last
    vector of the basis, the numbers of its rows, ``t``, the basis, the Hessenberg matrix, the right
    side of the least squares, and matrices.
    """

    def __init__(self, *operators: Any) -> None:
        super().__init__(*operators)
        self.end = Step(self._ended, ())

    def clear(self) -> None:
        """Forget the programs."""
        super().clear()
        self.end.clear()

    def started(
        self, b: Array, x: Any, rows: int, rtol: float, atol: float, *matrices: Array
    ) -> list[Array]:
        """Return the solution, whether it is one, and the state without matrices."""
        size = norm(b)
        if isinstance(x, Array):
            x = da.where(size == 0, da.zeros_like(x), x)
            r = b - self.times(0, x, matrices)
        else:
            x, r = da.zeros_like(b), b
        beta, limit = norm(r), da.maximum(rtol * size, atol)
        v = r / da.where(beta == 0, 1, beta)
        at = da.full_like(b.real, 1, shape=(rows,), chunks=-1, dtype=int).cumsum(0) - 1
        t = da.where(at == 0, 1, da.zeros_like(v, shape=(rows,), chunks=-1))
        hessenberg = da.zeros_like(v, shape=(rows, rows), chunks=-1)
        return [x, beta <= limit, beta, limit, v, at, t, _rows(t, v.ndim) * v, hessenberg, beta * t]

    def goes_on(self, least: Array, limit: Array, *_: Array) -> Array:
        """Return whether the least residual is above the tolerance."""
        return least > limit

    def advanced(
        self,
        least: Array,
        limit: Array,
        k: Array,
        v: Array,
        at: Array,
        t: Array,
        basis: Array,
        hessenberg: Array,
        right: Array,
        *matrices: Array,
    ) -> list[Array]:
        """Return the next state."""
        q = self.times(0, self.times(1, v, matrices), matrices)
        whole = norm(q)
        column = 0
        for _ in range(2):
            products = (conj(basis) * q).sum(axis=tuple(range(1, basis.ndim)))
            column, q = column + products, q - _combined(products, basis)
        rest = norm(q)
        is_exact = rest <= np.finfo(rest.dtype).eps * whole
        below = da.where(is_exact, 1, rest)
        v = q / below
        t = da.where(at == k + 1, -(t * column).sum() / below, t)
        column = column + da.where(at == k + 1, rest, 0)
        return [
            da.where(is_exact, 0, norm(right) / norm(t)),
            *(limit, k + 1, v, at, t),
            da.where(_rows(at, v.ndim) == k + 1, v, basis),
            da.where(at == k, column[:, None], hessenberg),
            *(right, *matrices),
        ]

    def _ended(
        self, x: Array, basis: Array, hessenberg: Array, right: Array, *matrices: Array
    ) -> Array:
        """Return the solution with the least residual."""
        y = da.map_blocks(_least_squares, hessenberg, right, drop_axis=0, meta=right._meta)
        return x + self.times(1, _combined(y, basis), matrices)


def _rows(numbers: Array, ndim: int) -> Array:
    """Return one number for each row of a basis of vectors with so many axes."""
    return numbers[(slice(None), *ndim * [None])]


def _combined(numbers: Array, basis: Array) -> Array:
    return (_rows(numbers, basis.ndim - 1) * basis).sum(axis=0)


def _least_squares(a: Any, b: Any) -> Any:
    """Return the shortest least-squares solution, NaN if the matrix is not finite."""
    return np.linalg.lstsq(a, b, rcond=None)[0] if np.isfinite(a).all() else math.nan * b


@of_functions_of_either_kind
def gmres(
    A: Any,
    b: Array,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    restart: int | None = None,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callable[[Array], Any] | None = None,
) -> tuple[Array, int]:
    """Solve ``A x = b`` by generalized minimal residuals, as :func:`scipy.sparse.linalg.gmres`.

    Parameters
    ----------
    A : dask.array.Array or callable
        A square matrix, or a function that multiplies an array by it.
    b : array_like
        The right side: a vector, or of any shape if ``A`` is a function.
    x0 : array_like, optional
        The first guess, by default zero.
    rtol, atol : float, optional
        It ends if ``norm(b - A x) <= max(rtol * norm(b), atol)``.
    restart : int, optional
        The number of iterations of a cycle, by default 20. It keeps one vector for each.
    maxiter : int, optional
        The most cycles, by default ten times the size of ``b``.
    M : dask.array.Array or callable, optional
        The preconditioner: an approximation of the inverse of ``A``. It acts from the right.
    callback : callable, optional
        It is called with ``x`` after each cycle, as SciPy does for ``callback_type="x"``.

    Returns
    -------
    x : dask.array.Array
        The solution, in the chunks of ``b``, or of the rows of the matrix.
    info : int
        0 if it converged, otherwise ``maxiter``, also if a cycle did not make the residual smaller.

    Raises
    ------
    TypeError
        If ``A`` or ``M`` are neither arrays nor callable, or arguments are not of numbers.
    ValueError
        If shapes do not fit, chunk sizes are unknown, or ``restart`` or ``maxiter`` is below 1.

    See Also
    --------
    cg : For Hermitian, positive definite matrices.
    lsqr : For rectangular matrices.

    Notes
    -----
    The iterations of a cycle run on the workers; the client reads one number between cycles.
    Programs are kept as by :func:`cg`.

    Examples
    --------
    >>> import dask.array as da, dask_dgpu as dgpu
    >>> x, info = dgpu.gmres(4 * da.eye(6, chunks=3), da.ones(6, chunks=3))
    >>> x.compute().tolist(), info
    ([0.25, 0.25, 0.25, 0.25, 0.25, 0.25], 0)
    """
    x: Any
    b, x, matrices = system(A, b, x0, M)
    most = 10 * b.size if maxiter is None else integer("maxiter", maxiter, 1)
    length = min(20 if restart is None else integer("restart", restart, 1), b.size)
    tolerances = real("rtol", rtol), real("atol", atol)
    method = kept(Residuals, A, M)
    last = math.inf
    for cycle in range(most + 1):
        x, is_solved, beta, limit, *rest = method.start(b, x, length + 1, *tolerances, *matrices)
        if cycle and callback is not None:
            callback(x)
        if bool(is_solved):
            return x, 0
        if cycle == most or not float(beta) < last:
            break
        last = float(beta)
        state = method.loop.run([beta, limit, 0, *rest, *matrices], length)
        x = method.end(x, *state[FOUND], *matrices)
    return x, most
