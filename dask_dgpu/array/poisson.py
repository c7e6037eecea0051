"""Direct solution of Poisson's equation on a uniform grid, by fast transforms.

The eigenvectors of the discrete Laplacian are waves, sines or cosines, depending on the boundary.
So its inverse is a transform, a division by the eigenvalues, and a transform back. Blocks do not
move between the transforms ([1]_).

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
from typing import Any

from dask.array.core import Array

from dask_dgpu.arguments import (
    as_array,
    check_choice,
    check_chunk_sizes,
    check_container,
    check_dtype,
    per_axis,
    positive,
)
from dask_dgpu.array.fft.call import output_layout, transform_axes
from dask_dgpu.array.fft.fallback import map_with_start
from dask_dgpu.kernels.fft import Transform
from dask_dgpu.kernels.fft.factors import Axis, divide
from dask_dgpu.kinds import of_either_kind

FORWARD = {"zero": "dst1", "reflect": "dct2", "periodic": "fft"}
BACKWARD = {"zero": "dst1", "reflect": "dct3", "periodic": "ifft"}


@of_either_kind
def poisson(
    rhs: Any, dx: float | Sequence[float] = 1.0, boundary: str | Sequence[str] = "periodic"
) -> Array:
    """Solve the discrete Poisson equation ``laplacian(u) = rhs``.

    The Laplacian is that of ``2 ndim + 1`` points: the sum over all axes of
    ``(u[j-1] - 2 u[j] + u[j+1]) / dx**2``. The only error is rounding; there is no error of
    discretisation.

    Parameters
    ----------
    rhs : array_like
        The right-hand side, a Dask array of one axis or more in any chunks, or input of
        ``dask.array.asarray``. Blocks are NumPy or CuPy arrays of real or complex numbers.
    dx : float or sequence of float, optional
        Distance of neighbouring grid points, one for all axes or one for each.
    boundary : {"periodic", "zero", "reflect"} or sequence of these, optional
        The value of ``u`` just beyond the ends of an axis, one for all axes or one for each.
        ``"periodic"``: the value at the other end. ``"zero"``: 0, a Dirichlet condition at the
        grid points -1 and n. ``"reflect"``: the value at the end once more, a Neumann
        condition half a step beyond it, as in ``scipy.ndimage``.

    Returns
    -------
    dask.array.Array
        ``u``, of the shape of ``rhs``. Single precision stays single, float16 becomes
        float32, integers and bools become float64. It has the chunks of ``rhs`` if that needs
        no further exchange, for example with one axis in chunks, or if
        ``dgpu.fft.output-layout`` is ``"input"``; else those of the last transform.

    Raises
    ------
    ValueError
        If ``dx`` is not positive and finite, a boundary is unknown, their number is not that
        of the axes, ``rhs`` has no axis, or its chunk sizes are unknown.
    TypeError
        If the dtype is not of numbers, or ``dx`` is no number.

    See Also
    --------
    dask_dgpu.fft.fftn, dask_dgpu.fft.dctn, dask_dgpu.fft.dstn : The transforms.

    Notes
    -----
    Without a ``"zero"`` boundary, ``u`` is unique only up to a constant, and there is a
    solution only if the mean of ``rhs`` is 0. So the mean of ``rhs`` is subtracted, and the
    ``u`` of mean 0 is returned.

    Each axis is transformed by an FFT (periodic), by sines of type I (zero) or by cosines of
    type II (reflect), and back. Blocks move as in ``dask_dgpu.fft``, for slabs once each way.
    With dask_dgpu enabled the whole solution can be one gang. Transforms are quickest if the
    length of an axis, plus one for ``"zero"``, has only small prime factors.

    The norm of the residual is that of ``u`` times that of the Laplacian, at most
    ``4 * sum(1 / dx**2)``, times ``eps`` and a small factor.
    """
    x = as_array("rhs", rhs)
    check_dtype("rhs", x)
    if x.ndim == 0:
        raise ValueError("expected rhs with at least 1 axis, got 0")
    distances = [positive("dx", each) for each in per_axis("dx", dx, x.ndim)]
    boundaries = per_axis("boundary", boundary, x.ndim)
    for each in boundaries:
        check_choice("boundary", each, FORWARD)
    check_chunk_sizes("rhs", x)
    check_container("rhs", x)
    if x.size == 0:
        return x.astype(Transform("dct2", 0, 1).output_dtype(x.dtype.name))
    axes = tuple(map(Axis, x.shape, distances, boundaries))
    forward, backward = _transforms(x, boundaries)
    spectrum = transform_axes(x, forward, "poisson-forward")
    solution = map_with_start(divide, spectrum, axes)
    layout = output_layout()
    return transform_axes(solution, backward, "poisson", output_layout=layout, chunks=x.chunks)


def _transforms(
    x: Array, boundaries: tuple[str, ...]
) -> tuple[tuple[Transform, ...], tuple[Transform, ...]]:
    """Return the forward and backward transforms, one per axis."""
    forward, backward = [], []
    for axis, (each, n) in enumerate(zip(boundaries, x.shape, strict=True)):
        forward.append(Transform(FORWARD[each], axis, n))
        norm = "backward" if each == "periodic" else "forward"
        backward.append(Transform(BACKWARD[each], axis, n, norm))
    periodic = [axis for axis, boundary in enumerate(boundaries) if boundary == "periodic"]
    if periodic and x.dtype.kind != "c":
        # the first transform, so preferably along an axis that is one chunk
        first = max(periodic, key=lambda axis: (len(x.chunks[axis]) == 1, axis))
        forward[first] = Transform("rfft", first, x.shape[first])
        backward[first] = Transform("irfft", first, x.shape[first])
    return tuple(forward), tuple(backward)
