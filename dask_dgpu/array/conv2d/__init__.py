"""Convolutions of images, as in ``torch.nn.functional.conv2d``.

Ranks compute whole images, or parts of images with the halos of the kernel; see
``dask_dgpu/algorithms/conv2d/``.

Examples
--------
>>> import dask.array as da, dask_dgpu as dgpu, numpy as np
>>> image = da.arange(20.0, chunks=8).reshape(1, 1, 4, 5)
>>> edges = np.array([[[[-1.0, 0.0, 1.0]]]])
>>> dgpu.conv2d(image, edges, padding="same").compute()[0, 0, 0].tolist()
[1.0, 2.0, 2.0, 2.0, -3.0]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from dask.array.core import Array, map_blocks
from dask.utils import typename

from dask_dgpu.arguments import (
    as_array,
    check_choice,
    check_chunk_sizes,
    check_container,
    expected,
    integer,
    sequence,
)
from dask_dgpu.array.chunks import beside
from dask_dgpu.array.conv2d.fallback import expand
from dask_dgpu.kinds import of_either_kind
from graph_opt.dask_graph.layers import deferred
from graph_opt.model.layout import ArrayNode, cuts_of, is_bfloat16
from graph_opt.model.window import Convolution, Sliding
from graph_opt.pieces.conv2d import Conv2dPiece

Pair = tuple[int, int]

AXES = ("rows", "columns")


@of_either_kind
def conv2d(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Array:
    """Convolve images with kernels, as ``torch.nn.functional.conv2d`` does.

    Parameters
    ----------
    x : array_like
        Images of shape ``(N, C, H, W)``: a Dask array in any chunks, or input of
        ``dask.array.asarray``. float16, bfloat16 of the package ml_dtypes, float32 or float64.
    weight : array_like
        Kernels of shape ``(O, C / groups, rows, columns)`` and the dtype of ``x``. Each rank
        gets all of them.
    bias : array_like, optional
        A number for each of the ``O`` output channels.
    stride : int or pair of int, optional
        Distance of two windows along rows and columns.
    padding : int, pair of int, "valid" or "same", optional
        Zeros beyond both ends of rows and columns. ``"valid"`` is 0. ``"same"`` keeps the
        shape; of an odd number of zeros, the last column or row gets one more.
    dilation : int or pair of int, optional
        Distance of two elements of a kernel.
    groups : int, optional
        Number of groups of channels that are convolved apart: ``C`` for depthwise convolution.

    Returns
    -------
    dask.array.Array
        Of shape ``(N, O, H', W')`` and the dtype of ``x``. All channels are in one chunk. The
        chunks of images are those of ``x``; rows and columns follow the chunks with the middle
        of their windows.

    Raises
    ------
    ValueError
        If shapes do not fit, a kernel exceeds the padded image, a parameter is out of range,
        ``padding="same"`` comes with a stride, or chunk sizes are unknown.
    TypeError
        If dtypes differ or are not real floating-point numbers, or a parameter is no integer.

    See Also
    --------
    stencil : Weighted sums of neighbours along any number of axes, once or many times.

    Notes
    -----
    The images are divided among workers by images, by rows and columns, or both, whichever is
    predicted to be quickest. Only halos travel, and blocks that are not on the rank that needs
    them. As in torch this is a correlation: kernels are not flipped. On CPUs half precision is
    computed in single precision and rounded once; on GPUs float32 is not rounded to TF32.

    Examples
    --------
    >>> import dask.array as da, dask_dgpu as dgpu
    >>> x = da.ones((2, 3, 8, 8), chunks=(1, 3, 4, 8))
    >>> y = dgpu.conv2d(x, da.ones((5, 3, 3, 3)), stride=2, padding=1)
    >>> y.shape, y.chunks[2]
    ((2, 5, 4, 4), (2, 2))
    >>> float(y[0, 0, 1, 1].compute())
    27.0
    """
    images, kernels = _operand("x", x, 4), _operand("weight", weight, 4)
    arrays = [images, kernels]
    if bias is not None:
        arrays.append(_operand("bias", bias, 1))
    for name, array in zip(("weight", "bias"), arrays[1:], strict=False):
        if array.dtype != images.dtype:
            raise TypeError(f"expected {name} of dtype {images.dtype} as x, got {array.dtype}")
    convolution = parameters(kernels.shape[2:], stride, padding, dilation, groups)
    _check_shapes(*(array.shape for array in arrays), groups=convolution.groups)
    _check_windows(images.shape[2:], convolution)
    arrays[1:] = [_beside(array, images) for array in arrays[1:]]
    cuts = convolution.result_cuts(tuple(map(cuts_of, images.chunks)), kernels.shape[0])
    chunks = tuple(tuple(np.diff(along).tolist()) for along in cuts)

    def piece(output: ArrayNode, sources: tuple[ArrayNode, ...]) -> Conv2dPiece:
        source, weights, *others = sources
        return Conv2dPiece(output, source, weights, others[0] if others else None, convolution)

    return deferred("conv2d", tuple(arrays), chunks, images.dtype.name, convolution, piece, expand)


def _operand(name: str, value: Any, ndim: int) -> Array:
    array = as_array(name, value)
    if array.ndim != ndim:
        raise ValueError(f"expected {name} with {ndim} axes, got {array.ndim}")
    check_chunk_sizes(name, array)
    known = array.dtype.name in ("float16", "float32", "float64") or is_bfloat16(array.dtype)
    if not known:
        raise TypeError(
            f"expected {name} to be of real floating-point numbers of at most double precision, "
            f"got {array.dtype}"
        )
    check_container(name, array)
    return array.astype(array.dtype.newbyteorder("="))


def parameters(kernel: Pair, stride: Any, padding: Any, dilation: Any, groups: Any) -> Convolution:
    """Return the parameters; raise unless each is possible."""
    strides, dilations = _pair("stride", stride, 1), _pair("dilation", dilation, 1)
    integer("groups", groups, 1)
    for along, taps in zip(AXES, kernel, strict=True):
        if not taps:
            raise ValueError(f"expected weight with kernels of at least 1 of {along}, got 0")
    reaches = [step * (taps - 1) for step, taps in zip(dilations, kernel, strict=True)]
    if isinstance(padding, str):
        check_choice("padding", padding, ("valid", "same"))
        if padding == "same" and strides != (1, 1):
            raise ValueError(f"expected stride 1 with padding 'same', got {stride!r}")
        same = padding == "same"
        paddings = [(reach // 2, reach - reach // 2) if same else (0, 0) for reach in reaches]
    else:
        paddings = [(zeros, zeros) for zeros in _pair("padding", padding, 0)]
    rows, columns = map(Sliding, kernel, strides, paddings, dilations)
    return Convolution((rows, columns), int(groups))


def _pair(name: str, value: Any, least: int) -> Pair:
    """Return an integer for rows and one for columns, from both or from one for both."""
    if not isinstance(value, Sequence | np.ndarray):
        one = integer(name, value, least)
        return one, one
    both = sequence(name, value, "an integer or a pair of integers")
    if len(both) not in (1, 2):
        expected(name, "an integer or a pair of integers", value)
    first, *_ = pair = [integer(f"each of {name}", each, least) for each in both]
    return first, pair[-1]


def _check_shapes(
    x: tuple[int, ...], weight: tuple[int, ...], bias: tuple[int, ...] | None = None, *, groups: int
) -> None:
    """Raise unless the channels of images, kernels and bias fit."""
    if not weight[0] or weight[0] % groups:
        raise ValueError(
            f"expected weight with a positive multiple of groups={groups} output channels, "
            f"got {weight[0]}"
        )
    if weight[1] * groups != x[1]:
        raise ValueError(
            f"expected x with {weight[1] * groups} channels for weight of shape {weight} and "
            f"groups={groups}, got {x[1]}"
        )
    if bias is not None and bias != weight[:1]:
        raise ValueError(f"expected bias of shape {weight[:1]}, got {bias}")


def _check_windows(shape: tuple[int, ...], convolution: Convolution) -> None:
    """Raise unless the images have elements and a kernel fits in a padded image."""
    for along, length, axis in zip(AXES, shape, convolution.axes, strict=True):
        if not length:
            raise ValueError(f"expected x with at least 1 of {along}, got 0")
        if axis.results(length) < 1:
            raise ValueError(
                f"expected kernels that reach at most {length + sum(axis.padding)} {along}, the "
                f"padded length of x, got {axis.reach}"
            )


def _beside(array: Array, images: Array) -> Array:
    """Return an array with blocks in the memory of the images."""
    if typename(type(array._meta)) == typename(type(images._meta)):
        return array
    return map_blocks(beside, array, like=images._meta, dtype=array.dtype, meta=images._meta)
