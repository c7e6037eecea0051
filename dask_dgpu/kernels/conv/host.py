"""Convolutions by torch on the CPU, without copies of images where torch needs none.

oneDNN convolves single precision. For double precision torch copies all windows to a matrix, nine
times the image for kernels of 3 x 3, and multiplies. In slabs of rows that matrix stays in the
cache, which is three times as fast. Half precision, which is slow or inexact on most CPUs, is
converted slab by slab.

torch uses as many threads as it finds in ``OMP_NUM_THREADS`` or was told: in a worker of Dask's
nanny one, as BLAS does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from dask_dgpu.kernels.conv import torch_options
from graph_opt.model.layout import Span, even_spans
from graph_opt.model.window import Convolution

Array = Any

SLAB_BYTES = {"float64": 2 << 20, "float16": 64 << 20, "bfloat16": 64 << 20}
"""Approximate size of the matrix of a slab, by dtype; no slabs for others."""


class _Writable:
    """Read-only memory, declared as writable: torch warns about read-only arrays."""

    def __init__(self, array: Array) -> None:
        address = (array.ctypes.data, False)
        self.__array_interface__ = {**array.__array_interface__, "data": address}
        self._owner = array


def conv2d_host(
    x: Array,
    weight: Array,
    bias: Array | None,
    convolution: Convolution,
    shape: tuple[int, int, int, int],
) -> Array:
    """Convolve images that are not empty; ``shape`` is that of the result."""
    wide = "float64" if x.dtype == np.float64 else "float32"
    kernels = _tensor(weight, wide)
    added = None if bias is None else _tensor(bias, wide)
    slabs = list(_slabs(x, weight, shape))
    if len(slabs) == 1:
        return _convolved(x, kernels, added, convolution).astype(x.dtype, copy=False)
    out = np.empty(shape, x.dtype)
    rows, columns = convolution.axes
    for image, (start, stop) in slabs:
        window = rows.window(start, stop, x.shape[2])
        slab = replace(rows, padding=(window.before, window.after))
        part = x[image : image + 1, :, window.start : window.stop]
        if not part.size:  # all of it is padding
            out[image, :, start:stop] = 0 if bias is None else bias[:, None, None]
            continue
        parameters = replace(convolution, axes=(slab, columns))
        out[image, :, start:stop] = _convolved(part, kernels, added, parameters)[0]
    return out


def _slabs(x: Array, weight: Array, shape: tuple[int, int, int, int]) -> Iterator[tuple[int, Span]]:
    """Yield the image and the rows of each slab of the result; one stands for everything."""
    images, _, rows, columns = shape
    most = SLAB_BYTES.get(x.dtype.name)
    row = x.shape[1] * weight.shape[2] * weight.shape[3] * columns * x.itemsize
    if most is None or images * rows * row <= most:
        yield 0, (0, rows)
        return
    parts = min(rows, -(-rows * row // most))
    for image in range(images):
        for span in even_spans(0, rows, parts):
            yield image, span


def _convolved(
    x: Array, kernels: torch.Tensor, added: torch.Tensor | None, convolution: Convolution
) -> Array:
    options, zeros = torch_options(convolution)
    images = _tensor(x, "float64" if x.dtype == np.float64 else "float32")
    if zeros is not None:
        images = functional.pad(images, zeros)
    result = functional.conv2d(images, kernels, added, **options)
    return result.contiguous().numpy()


def _tensor(array: Array, dtype: str) -> torch.Tensor:
    """Return an array as a tensor in the same memory if it has this dtype."""
    array = array.astype(dtype, copy=False)
    aligned = not any(stride % array.itemsize for stride in array.strides)
    if not aligned or min(array.strides) < 0:
        array = np.ascontiguousarray(array)
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Writable(array)))
