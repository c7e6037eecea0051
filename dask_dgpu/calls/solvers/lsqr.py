"""Least squares by the bidiagonalization of Golub and Kahan.

References
----------
.. [1] C. C. Paige and M. A. Saunders, "LSQR: An algorithm for sparse linear equations and sparse
   least squares", ACM TOMS 8 (1982).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.array.core import Array

from dask_dgpu.arguments import (
    as_array,
    check_chunk_sizes,
    check_dtype,
    check_flag,
    expected,
    integer,
    real,
    sequence,
)
from dask_dgpu.calls.loop import plain
from dask_dgpu.calls.solvers.method import Method, conj, dot, dtype_of, kept, like, norm
from dask_dgpu.kinds import of_functions_of_either_kind


class State(NamedTuple):
    """The state of a loop: arrays, and numbers by their names in SciPy; the matrix follows.

    The variances are a number if they are not wanted.
    """

    x: Any
    u: Any
    v: Any
    w: Any
    var: Any
    alfa: Any
    rhobar: Any
    phibar: Any
    rnorm: Any
    arnorm: Any
    bnorm: Any
    damp: Any
    atol: Any
    btol: Any
    ctol: Any
    istop: Any = 0
    itn: Any = 0
    anorm: Any = 0.0
    ddnorm: Any = 0.0
    res2: Any = 0.0
    xnorm: Any = 0.0
    xxnorm: Any = 0.0
    z: Any = 0.0
    cs2: Any = -1.0
    sn2: Any = 0.0


class Bidiagonal(Method):
    """The programs of :func:`lsqr` for a matrix, or for functions of it and of its adjoint."""

    def _forward(self, x: Array, b: Array, matrix: Sequence[Array]) -> Array:
        """Return the product of the matrix and a solution, like the right side."""
        operator: Any = self.operators[0]
        return like("the result of A[0]", matrix[0] @ x if matrix else operator(x), b)

    def _back(self, b: Array, matrix: Sequence[Array]) -> Array:
        """Return the product of the adjoint and a right side."""
        operator: Any = self.operators[-1]
        return (conj(conj(b) @ matrix[0]) if matrix else operator(b)).astype(b.dtype)

    def started(self, b: Array, x: Any, *matrix: Array) -> list[Array]:
        """Return the solution, both first vectors, their norms, and the norm of the right side."""
        u = b - self._forward(x, b, matrix) if isinstance(x, Array) else b
        beta = norm(u)
        u = _normal(u, beta)
        v = self._back(u, matrix)
        x = like("the result of A[1]", x, v) if isinstance(x, Array) else da.zeros_like(v)
        alfa = norm(v)
        return [x, u, _normal(v, alfa), alfa, beta, beta.astype(float), alfa * beta, norm(b)]

    def goes_on(self, *state: Array) -> Array:
        """Return whether no test has ended it."""
        s = State(*state[:SIZE])
        return (s.istop == 0) & (s.arnorm != 0)

    def advanced(self, *state: Array) -> list[Array]:
        """Return the next state."""
        s, matrix = State(*state[:SIZE]), state[SIZE:]
        u = self._forward(s.v, s.u, matrix) - s.alfa * s.u
        beta = norm(u)
        u = _normal(u, beta)
        v = self._back(u, matrix) - beta * s.v
        alfa = norm(v)
        v = _normal(v, alfa)
        damp = s.damp.astype(beta.dtype)
        anorm = da.sqrt(s.anorm**2 + s.alfa**2 + beta**2 + damp**2)
        anorm = da.where(beta == 0, s.anorm, anorm)

        # one rotation eliminates the damping, one the subdiagonal
        rhobar1 = da.hypot(s.rhobar, damp)
        psi, phibar = damp / rhobar1 * s.phibar, s.rhobar / rhobar1 * s.phibar
        rho = da.hypot(rhobar1, beta)
        cs, sn = rhobar1 / rho, beta / rho
        theta, phi = sn * alfa, cs * phibar
        phibar = sn * phibar
        dk = s.w / rho
        ddnorm = s.ddnorm + dot(dk, dk).real

        # one the superdiagonal, for the norm of the solution
        gambar = -s.cs2 * rho
        right = phi - s.sn2 * rho * s.z
        xnorm = da.sqrt(s.xxnorm + (right / gambar) ** 2)
        gamma = da.hypot(gambar, theta)
        z = right / gamma

        res2 = s.res2 + psi**2
        rnorm, arnorm = da.sqrt(phibar**2 + res2), alfa * abs(sn * phi)
        eps, scale = np.finfo(beta.dtype).eps, anorm * xnorm
        gradient, well = arnorm / (anorm * rnorm + eps), 1 / (anorm * da.sqrt(ddnorm) + eps)
        istop = 0 * s.istop
        for test, reason in (
            (2 * well <= eps, 6),
            (2 * gradient <= eps, 5),
            (2 * rnorm <= eps * (s.bnorm + scale), 4),
            (well <= s.ctol, 3),
            (gradient <= s.atol, 2),
            (rnorm <= s.btol * s.bnorm + s.atol * scale, 1),
        ):
            istop = da.where(test, reason, istop)
        after = s._replace(
            x=s.x + phi * dk,
            u=u,
            v=v,
            w=v - theta * dk,
            var=s.var + (conj(dk) * dk).real if s.var.ndim else s.var,
            alfa=alfa,
            rhobar=-cs * alfa,
            phibar=phibar,
            rnorm=rnorm,
            arnorm=arnorm,
            istop=istop,
            itn=s.itn + 1,
            anorm=anorm,
            ddnorm=ddnorm,
            res2=res2,
            xnorm=xnorm,
            xxnorm=s.xxnorm + z**2,
            z=z,
            cs2=gambar / gamma,
            sn2=theta / gamma,
        )
        return [*after, *matrix]


SIZE = len(State._fields)

OUT_OF_ITERATIONS = 7


def _normal(x: Array, size: Array) -> Array:
    return x / da.where(size == 0, 1, size)


@of_functions_of_either_kind
def lsqr(
    A: Any,
    b: Array,
    damp: float = 0.0,
    atol: float = 1e-6,
    btol: float = 1e-6,
    conlim: float = 1e8,
    iter_lim: int | None = None,
    *,
    calc_var: bool = False,
    x0: Any = None,
) -> tuple[Array, int, int, float, float, float, float, float, float, Array]:
    """Solve ``A x = b``, or minimize the residual, as :func:`scipy.sparse.linalg.lsqr`.

    With ``damp``, the minimum is that of ``norm(A x - b)**2 + damp**2 * norm(x - x0)**2``.

    Parameters
    ----------
    A : dask.array.Array or pair of callable
        A matrix, or a function that multiplies an array by it and one that multiplies by its
        conjugate transpose.
    b : array_like
        The right side: a vector, or of any shape if ``A`` are functions.
    damp : float, optional
        The damping.
    atol, btol : float, optional
        For ``r = b - A x``, the loop ends if ``norm(r) <= atol * norm(A) * norm(x) + btol *
        norm(b)``, or if ``norm(A^H r) <= atol * norm(A) * norm(r)``.
    conlim : float, optional
        It also ends if the condition of ``A`` seems to be more than this; 0 for no limit.
    iter_lim : int, optional
        The most iterations, by default two for each number of the solution.
    calc_var : bool, optional
        Whether to estimate the diagonal of ``inv(A^H A + damp**2 I)``.
    x0 : array_like, optional
        The first guess, by default zero.

    Returns
    -------
    x : dask.array.Array
        The solution, in the chunks of the columns of the matrix, or of what the second function
        returns for ``b``.
    istop : int
        Why it ended: 0 if ``x0`` is the solution, 1 if ``A x = b``, 2 if the residual is the least,
        3 for ``conlim``, 4 to 6 as 1 to 3 but as far as the dtype allows, 7 for ``iter_lim``.
    itn : int
        The number of iterations.
    r1norm, r2norm : float
        ``norm(r)``, and the square root of the minimum.
    anorm, acond : float
        Estimates of the Frobenius norm and the condition of ``A`` with its damping.
    arnorm, xnorm : float
        ``norm(A^H r - damp**2 * (x - x0))``, and ``norm(x)``.
    var : dask.array.Array
        The estimated diagonal, zeros unless ``calc_var``.

    Raises
    ------
    TypeError
        If ``A`` is neither an array nor a pair of callables, or arguments are not of numbers.
    ValueError
        If shapes do not fit, chunk sizes are unknown, or ``iter_lim`` is negative.

    See Also
    --------
    cg, gmres : For square matrices.

    Notes
    -----
    Programs are kept as by :func:`cg`.

    Examples
    --------
    >>> import dask.array as da, dask_dgpu as dgpu
    >>> a = da.from_array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]], chunks=2)
    >>> x, istop, itn, *_ = dgpu.lsqr(a, da.from_array([1.0, 0.0, -1.0], chunks=2))
    >>> x.round(6).compute().tolist(), istop, itn
    ([1.0, -1.0], 1, 1)
    """
    b = as_array("b", b)
    first = None if x0 is None else as_array("x0", x0)
    is_matrix = isinstance(A, Array)
    pair = () if is_matrix else sequence("A", A, "a Dask array or a pair of callables")
    if not is_matrix and (len(pair) != 2 or not all(map(callable, pair))):
        expected("A", "a Dask array or a pair of callables", A, TypeError)
    for name, each in (("A", A), ("b", b), ("x0", first)):
        if isinstance(each, Array):
            check_dtype(name, each)
            check_chunk_sizes(name, each)
    if is_matrix and (b.ndim != 1 or A.ndim != 2 or len(A) != len(b)):
        expected("A", f"a matrix for b of shape {b.shape}", A)
    back = b @ A if is_matrix else plain(pair[1])(b)
    if first is not None and first.shape != back.shape:
        expected("x0", f"of shape {back.shape}", first)
    dtype = dtype_of(b, back, *([] if first is None else [first]))
    b = b.astype(dtype).rechunk((A.chunks[0],) if is_matrix else b.chunks)
    limit, most = real("conlim", conlim), 2 * back.size
    if iter_lim is not None:
        most = integer("iter_lim", iter_lim, 0)
    constants = [real("damp", damp), real("atol", atol), real("btol", btol)]
    constants.append(1 / limit if limit > 0 else 0.0)
    check_flag("calc_var", calc_var)

    method, matrix = kept(Bidiagonal, *(pair or [A])), [A] if is_matrix else []
    guess = 0 if first is None else first.astype(dtype).rechunk(back.chunks)
    x, u, v, alfa, beta, rnorm, arnorm, bnorm = method.start(b, guess, *matrix)
    zeros = da.zeros_like(x.real)
    variances = zeros if calc_var else 0.0
    start = State(x, u, v, v, variances, alfa, alfa, beta, rnorm, arnorm, bnorm, *constants)
    end = State(*method.loop.run([*start, *matrix], most)[:SIZE])
    itn, istop, r2norm = int(end.itn), int(end.istop), float(end.rnorm)
    if not istop and itn == most and itn:
        istop = OUT_OF_ITERATIONS
    anorm, r1sq = float(end.anorm), r2norm**2 - damp**2 * float(end.xxnorm)
    return (
        *(end.x, istop, itn, math.copysign(math.sqrt(abs(r1sq)), r1sq), r2norm),
        *(anorm, anorm * math.sqrt(float(end.ddnorm)), float(end.arnorm), float(end.xnorm)),
        end.var if calc_var else zeros,
    )
