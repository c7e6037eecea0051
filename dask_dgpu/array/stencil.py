"""Stencils of Dask arrays: weighted sums of the neighbours of each element.

Blocks exchange only ghost cells. Many iterations are one program: several sweeps follow each
exchange, transfers overlap with the inner parts of blocks, and small blocks are joined to one
tile per worker. See ``dask_dgpu/algorithms/stencil/``.

Examples
--------
>>> import dask.array as da, dask_dgpu as dgpu
>>> x = da.ones((4, 6), chunks=2)
>>> dgpu.stencil(x, boundary="zero").compute()[:2].tolist()
[[-2.0, -1.0, -1.0, -1.0, -1.0, -2.0], [-1.0, 0.0, 0.0, 0.0, 0.0, -1.0]]
>>> float(abs(dgpu.stencil(x, dgpu.LAPLACIAN_9PT, boundary="reflect")).max()) < 1e-14
True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from dask.array.core import Array, map_blocks
from dask.array.overlap import overlap

from dask_dgpu.algorithms.halo.plan import Boundary
from dask_dgpu.algorithms.stencil.plan import StencilTask
from dask_dgpu.arguments import (
    as_array,
    check_chunk_sizes,
    check_container,
    check_dtype,
    expected,
    integer,
    is_number,
    per_axis,
    unknown,
)
from dask_dgpu.array.chunks import rechunked
from dask_dgpu.kernels.stencil import LAPLACIAN_5PT, LAPLACIAN_9PT, Taps, padded, weighted
from dask_dgpu.kinds import of_either_kind
from graph_opt.dask_graph.internals import ensure_minimum_chunksize
from graph_opt.dask_graph.layers import Expand, Passes, array_of, deferred
from graph_opt.model.layout import Chunks, even_spans
from graph_opt.pieces.stencil import StencilPiece

__all__ = ["LAPLACIAN_5PT", "LAPLACIAN_9PT", "stencil"]

BOUNDARIES = ("zero", "periodic", "reflect", "mirror", "nearest")


@of_either_kind
def stencil(
    x: Any,
    kernel: Any = LAPLACIAN_5PT,
    *,
    boundary: str | complex | Sequence[str | complex] = "zero",
    iterations: int = 1,
) -> Array:
    """Apply a stencil to an array, once or several times.

    Parameters
    ----------
    x : array_like
        A Dask array of one axis or more, in any chunks, or input of ``dask.array.asarray``.
        Blocks are NumPy or CuPy arrays.
    kernel : array_like, optional
        Weights, with the number of axes of ``x`` and odd lengths. The result is the
        correlation, as in ``scipy.ndimage.correlate``: the weight in the middle applies to
        the element itself. By default the Laplacian of 5 points, ``LAPLACIAN_5PT``;
        ``LAPLACIAN_9PT`` is that of 9.
    boundary : str, number or sequence of these, optional
        Values beyond the array, for all axes or for each of them: ``"zero"`` or another
        number, ``"periodic"``, ``"reflect"`` (mirrored, with the edge, as in
        ``scipy.ndimage``), ``"mirror"`` (without the edge) or ``"nearest"``.
    iterations : int, optional
        Number of applications, each to the result of the previous one.

    Returns
    -------
    dask.array.Array
        Of the shape and the chunks of ``x``. Its dtype is that of ``x``, float64 for
        integers and bools, and complex for complex weights. float16 is computed in float32.

    Raises
    ------
    ValueError
        If the kernel has another number of axes than ``x``, an even length, a weight that is
        not finite, or a reach beyond the length of ``x``; if a boundary is unknown, or
        complex for real numbers, ``iterations`` is negative, or chunk sizes are unknown.
    TypeError
        If ``x`` or the kernel is not of numbers, or ``iterations`` is no integer.

    See Also
    --------
    jacobi : Iterate until the residual is small.
    scipy.ndimage.correlate : One iteration on a NumPy array.

    Notes
    -----
    Zero weights are skipped: they do not propagate NaN or infinity. A worker needs memory for
    its blocks and two copies of them with ghost cells. With s sweeps per exchange it sends
    s times fewer messages, each with s times as many ghost cells ([1]_).

    References
    ----------
    .. [1] C. Ding and Y. He, "A ghost cell expansion method for reducing communications
       in solving PDE problems", Supercomputing (2001).

    Examples
    --------
    >>> import dask.array as da, dask_dgpu as dgpu
    >>> x = da.arange(6.0, chunks=2)
    >>> dgpu.stencil(x, [0.5, 0.0, 0.5], boundary="periodic").compute().tolist()
    [3.0, 1.0, 2.0, 3.0, 4.0, 2.0]
    """
    array = as_array("x", x)
    check_array("x", array)
    taps = taps_of(kernel, array.shape)
    dtype = working_dtype(array.dtype, taps.weights)
    beyond = boundaries(boundary, array.ndim, dtype)
    task = StencilTask(dtype.name, taps, beyond, integer("iterations", iterations, 0))
    result_dtype = array.dtype if array.dtype.name == "float16" and dtype.kind == "f" else dtype
    source = array.astype(dtype)
    if task.iterations and math.prod(array.shape):
        source = sweeping("stencil", (source,), source.chunks, task, expand, passes)
    return source.astype(result_dtype)


def check_array(name: str, x: Array) -> None:
    """Raise if a stencil cannot be applied to an array."""
    if not x.ndim:
        raise ValueError(f"expected {name} with at least 1 axis, got 0")
    check_chunk_sizes(name, x)
    what = "real or complex numbers of at most double precision"
    check_dtype(name, x, what=what)
    if np.result_type(x.dtype, np.complex128) != np.complex128:
        raise TypeError(f"expected {name} to be of {what}, got {x.dtype}")
    check_container(name, x)


def taps_of(kernel: Any, shape: tuple[int, ...]) -> Taps:
    """Return the taps of a kernel for an array of this shape."""
    try:
        weights = np.asarray(kernel)
    except ValueError:  # rows of several lengths
        expected("kernel", "an array", kernel)
    check_dtype("kernel", weights)
    if weights.ndim != len(shape):
        raise ValueError(f"expected kernel to have {len(shape)} axes as x, got {weights.ndim}")
    for axis, (length, n) in enumerate(zip(weights.shape, shape, strict=True)):
        if length % 2 == 0:
            raise ValueError(f"expected kernel of odd length along axis {axis}, got {length}")
        if length // 2 > n:
            raise ValueError(
                f"expected kernel to reach at most {n} elements along axis {axis}, the length "
                f"of x, got {length // 2}"
            )
    if not np.isfinite(weights).all():
        raise ValueError("expected kernel with finite weights, got NaN or infinity")
    return Taps.of(weights.astype(complex if weights.dtype.kind == "c" else float))


def working_dtype(dtype: Any, weights: Sequence[complex]) -> np.dtype[Any]:
    """Return the dtype in which sweeps are computed."""
    real = np.dtype(dtype) if np.dtype(dtype).kind in "fc" else np.dtype("float64")
    least = "complex64" if any(isinstance(weight, complex) for weight in weights) else "float32"
    return np.result_type(real, least)


def boundaries(boundary: Any, ndim: int, dtype: np.dtype[Any]) -> tuple[Boundary, ...]:
    """Return the boundary of each axis, with numbers that ``dtype`` can hold."""
    return tuple(_boundary(each, dtype) for each in per_axis("boundary", boundary, ndim))


def _boundary(boundary: Any, dtype: np.dtype[Any]) -> Boundary:
    if is_number(boundary):
        value = complex(boundary)
        if value.imag and dtype.kind != "c":
            raise ValueError(
                f"expected boundary to be real for an array of {dtype}, got {boundary!r}"
            )
        return value if value.imag else value.real
    if not isinstance(boundary, str):
        what = f"one of {', '.join(BOUNDARIES)}, or a number"
        expected("boundary", what, boundary, TypeError)
    if boundary not in BOUNDARIES:
        raise ValueError(f"{unknown('boundary', boundary, BOUNDARIES)}, or a number")
    return 0.0 if boundary == "zero" else boundary


def sweeping(
    name: str,
    sources: tuple[Array, ...],
    chunks: Chunks,
    task: Any,
    expand: Expand,
    passes: Passes | None = None,
) -> Array:
    """Return the result of a :class:`StencilTask` or a ``JacobiTask``, as one layer.

    The sources have the task's dtype. See :func:`deferred` for the other parameters.
    """
    return deferred(
        name,
        sources,
        chunks,
        task.dtype,
        task,
        lambda output, nodes: StencilPiece(output, nodes, task),
        expand,
        passes,
    )


def passes(piece: StencilPiece) -> Array:
    """Return the sweeps by rounds of plain Dask, whose ghost cells a gang may exchange."""
    y = expand(piece)
    name = piece.output.name
    return map_blocks(_same, y, name=name, dtype=y.dtype, meta=y._meta)


def expand(piece: StencilPiece) -> Array:
    """Exchange ghost cells for several sweeps, then sweep block by block, and so on."""
    (source,), task = piece.sources, cast(StencilTask, piece.task)
    y = thick(array_of(source), task.taps)
    for lo, hi in even_spans(0, task.iterations, piece.rounds):
        y = swept(y, task.taps, task.boundary, sweeps=hi - lo)
    return rechunked(y, source.chunks)


def _same(block: Any) -> Any:
    return block


def thick(x: Array, taps: Taps) -> Array:
    """Return an array with chunks at least as long as the reach of a stencil."""
    chunks = tuple(
        ensure_minimum_chunksize(max(1, reach), sizes)
        for reach, sizes in zip(taps.radius, x.chunks, strict=True)
    )
    return rechunked(x, chunks)


def swept(
    x: Array,
    taps: Taps,
    boundary: tuple[Boundary, ...],
    added: Array | None = None,
    *,
    sweeps: int = 1,
) -> Array:
    """Apply sweeps; add another array of the same chunks to the result of a single one."""
    depth = {
        axis: sweeps * reach if parts > 1 or each == "periodic" else 0
        for axis, (reach, parts, each) in enumerate(
            zip(taps.radius, x.numblocks, boundary, strict=True)
        )
    }
    # Dask creates other boundaries in the declared type of blocks, which may be wrong
    around = {axis: each if each == "periodic" else "none" for axis, each in enumerate(boundary)}
    blocks = overlap(x, depth, around, allow_rechunk=False)
    return map_blocks(
        sweep_block,
        blocks,
        *([] if added is None else [added]),
        taps=taps,
        boundary=boundary,
        grid=x.numblocks,
        sweeps=sweeps,
        chunks=x.chunks,
        dtype=x.dtype,
        meta=np.empty((0,) * x.ndim, x.dtype),
        token="sweep",
    )


def sweep_block(
    block: Any,
    added: Any = None,
    *,
    taps: Taps,
    boundary: tuple[Boundary, ...],
    grid: tuple[int, ...],
    sweeps: int = 1,
    block_id: tuple[int, ...] = (),
) -> Any:
    """Sweep a block with ghost cells, except beyond the ends of an axis that is not periodic."""
    for _ in range(sweeps):
        for axis, (reach, each) in enumerate(zip(taps.radius, boundary, strict=True)):
            if each is not None and each != "periodic":
                first, last = block_id[axis] == 0, block_id[axis] == grid[axis] - 1
                block = padded(block, axis, (reach * first, reach * last), each)
        block = weighted(block, taps)
    if added is not None:
        block += added
    return block
