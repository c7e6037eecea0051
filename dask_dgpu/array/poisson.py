"""Poisson's equation on a uniform grid, solved directly by fast transforms.

Waves, sines or cosines are the eigenvectors of the discrete Laplacian, whichever its boundary
asks for. So its inverse is a transform, a division by the eigenvalues, and a transform back;
between the transforms blocks stay where they are ([1]_).

References
----------
.. [1] P. N. Swarztrauber, "The methods of cyclic reduction, Fourier analysis and the FACR
   algorithm for the discrete solution of Poisson's equation on a rectangle", SIAM Review 19
   (1977).

Examples
--------
>>> import dask.array as da, dask_dgpu as dgpu
>>> rhs = da.zeros((3, 5), chunks=(1, 5))
>>> rhs[1, 2] = -1
>>> u = dgpu.poisson(rhs, boundary="zero")
>>> u.compute().round(2)[1].tolist()
[0.06, 0.15, 0.4, 0.15, 0.06]
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from numbers import Number
from typing import Any

import dask.array as da
from dask.array.core import Array

from dask_dgpu.algorithms.pencil_fft import Transform
from dask_dgpu.arguments import as_array, check_choice, positive, sequence
from dask_dgpu.array.fft.long_axis import transform_axes
from dask_dgpu.array.inputs import check_chunk_sizes, check_container, check_dtype
from dask_dgpu.environment.settings import fft_output_layout
from dask_dgpu.kernels.fft.laplacian import Axis, inverted

FORWARD = {"zero": "dst1", "reflect": "dct2", "periodic": "fft"}
BACKWARD = {"zero": "dst1", "reflect": "dct3", "periodic": "ifft"}


def poisson(
    rhs: Any, dx: float | Sequence[float] = 1.0, boundary: str | Sequence[str] = "periodic"
) -> Array:
    """Solve the discrete Poisson equation ``laplacian(u) = rhs``.

    The Laplacian is that of ``2 ndim + 1`` points: the sum over all axes of
    ``(u[j-1] - 2 u[j] + u[j+1]) / dx**2``. Where ``rhs`` and ``u`` agree on it, they agree to
    rounding, not to the order of a discretisation.

    Parameters
    ----------
    rhs : array_like
        The right-hand side, a Dask array of one dimension or more in any chunks, or what
        ``dask.array.asarray`` takes. Blocks are NumPy or CuPy arrays, of real or complex
        numbers.
    dx : float or sequence of float, optional
        Distance of neighbouring grid points, one for all axes or one for each.
    boundary : {"periodic", "zero", "reflect"} or sequence of these, optional
        What ``u`` is just beyond the ends of an axis, one for all axes or one for each.
        ``"periodic"``: the value at the other end. ``"zero"``: 0, a Dirichlet condition at the
        grid points -1 and n. ``"reflect"``: the value at the end once more, a Neumann
        condition half a step beyond it, as in ``scipy.ndimage``.

    Returns
    -------
    dask.array.Array
        ``u``, of the shape of ``rhs``. Single precision stays single, float16 becomes
        float32, integers and bools become float64. The chunks are those of ``rhs`` if that
        costs no exchange more, as where only one axis is in chunks, or if
        ``dgpu.fft.output-layout`` is ``"input"``; else those of the last transform.

    Raises
    ------
    ValueError
        When ``dx`` is not positive and finite, a boundary is unknown, there are more or fewer
        of them than axes, ``rhs`` has no axis, or its chunk sizes are unknown.
    TypeError
        When the dtype is not one of numbers, or ``dx`` is no number.

    See Also
    --------
    dask_dgpu.fft.fftn, dask_dgpu.fft.dctn, dask_dgpu.fft.dstn : The transforms.

    Notes
    -----
    Without any boundary that is ``"zero"``, adding a constant to ``u`` changes nothing, and
    there is a solution only if the mean of ``rhs`` is 0. Then the mean of ``rhs`` is taken off,
    and the ``u`` whose mean is 0 is returned.

    Each axis is transformed by an FFT (periodic), by sines of type I (zero) or by cosines of
    type II (reflect), and back; blocks move as ``dask_dgpu.fft`` says, once each way for
    slabs. While dask_dgpu is enabled all of it is one gang where that pays. Transforms are
    quickest where the length of an axis, or one more with zeros, has small prime factors only.

    The norm of the residual is that of ``u`` times that of the Laplacian, at most
    ``4 * sum(1 / dx**2)``, times ``eps`` and a small factor.
    """
    x = as_array("rhs", rhs)
    check_dtype("rhs", x)
    if x.ndim == 0:
        raise ValueError("expected rhs with at least 1 axis, got 0")
    distances, boundaries = _distances(dx, x.ndim), _boundaries(boundary, x.ndim)
    check_chunk_sizes("rhs", x)
    check_container("rhs", x)
    if x.size == 0:
        return x.astype(Transform("dct2", 0, 1).output_dtype(x.dtype.name))
    axes = tuple(map(Axis, x.shape, distances, boundaries))
    forward, backward = _transforms(x, boundaries)
    spectrum = transform_axes(x, forward, "poisson-forward")
    starts = tuple(tuple(accumulate(sizes, initial=0)) for sizes in spectrum.chunks)
    solution = da.map_blocks(
        _inverted_block,
        spectrum,
        starts=starts,
        token="divide",
        axes=axes,
        dtype=spectrum.dtype,
        meta=spectrum._meta,
    )
    layout = fft_output_layout()
    return transform_axes(solution, backward, "poisson", output_layout=layout, chunks=x.chunks)


def _transforms(
    x: Array, boundaries: tuple[str, ...]
) -> tuple[tuple[Transform, ...], tuple[Transform, ...]]:
    """Return the transforms there and back, one an axis."""
    there = [Transform(FORWARD[each], axis, x.shape[axis]) for axis, each in enumerate(boundaries)]
    back = [
        Transform(
            BACKWARD[each], axis, x.shape[axis], "backward" if each == "periodic" else "forward"
        )
        for axis, each in enumerate(boundaries)
    ]
    periodic = [axis for axis, each in enumerate(boundaries) if each == "periodic"]
    if periodic and x.dtype.kind != "c":
        # the first of all, so one that is whole already, if there is any
        first = max(periodic, key=lambda axis: (len(x.chunks[axis]) == 1, axis))
        there[first] = Transform("rfft", first, x.shape[first])
        back[first] = Transform("irfft", first, x.shape[first])
    return tuple(there), tuple(back)


def _inverted_block(
    block: Any,
    starts: tuple[tuple[int, ...], ...],
    axes: tuple[Axis, ...],
    block_id: tuple[int, ...],
) -> Any:
    begin = tuple(along[at] for along, at in zip(starts, block_id, strict=True))
    return inverted(block, begin, axes)


def _distances(dx: Any, ndim: int) -> tuple[float, ...]:
    if isinstance(dx, Number | str | bytes | None):
        return (positive("dx", dx),) * ndim
    return tuple(positive("each of dx", one) for one in _one_an_axis("dx", dx, ndim))


def _boundaries(boundary: Any, ndim: int) -> tuple[str, ...]:
    several = not isinstance(boundary, str)
    each = _one_an_axis("boundary", boundary, ndim) if several else (boundary,) * ndim
    for one in each:
        check_choice("boundary", one, FORWARD)
    return each


def _one_an_axis(name: str, value: Any, ndim: int) -> tuple[Any, ...]:
    each = sequence(name, value, "one value, or one for each axis")
    if len(each) != ndim:
        raise ValueError(
            f"expected {name} to have one entry per axis of rhs, {ndim}, got {len(each)}"
        )
    return each
