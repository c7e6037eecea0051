"""Convolutions by torch on the CPU, without copies of images where torch needs none.

Images are convolved in slabs: some images, or some rows of one. oneDNN convolves single precision
and copies images and results to its own layout. For double precision torch copies all windows to a
matrix, nine times the image for kernels of 3 x 3, and multiplies. These copies of a slab stay in
the cache and in memory that the allocator has already, without page faults: single precision is
twice as fast, double precision three times. Half precision, which is slow or inexact on most CPUs,
is converted slab by slab.

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

SLAB_BYTES = 2 << 20
"""Approximate size of the largest copy of a slab, for each thread."""

LANES = 16
"""oneDNN's layout has a multiple of so many channels."""


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
    slabs = list(_slabs(x, weight, convolution, shape))
    if len(slabs) == 1:
        return _convolved(x, kernels, added, convolution).astype(x.dtype, copy=False)
    out = np.empty(shape, x.dtype)
    rows, columns = convolution.axes
    for images, (start, stop) in slabs:
        window = rows.window(start, stop, x.shape[2])
        slab = replace(rows, padding=(window.before, window.after))
        part = x[images, :, window.start : window.stop]
        if not part.size:  # all of it is padding
            out[images, :, start:stop] = 0 if bias is None else bias[:, None, None]
            continue
        parameters = replace(convolution, axes=(slab, columns))
        out[images, :, start:stop] = _convolved(part, kernels, added, parameters)
    return out


def _slabs(
    x: Array, weight: Array, convolution: Convolution, shape: tuple[int, int, int, int]
) -> Iterator[tuple[slice, Span]]:
    """Yield the images and the rows of each slab of the result; one stands for everything."""
    images, channels, rows, columns = shape
    if x.dtype == np.float64:
        row = x.shape[1] * weight.shape[2] * weight.shape[3] * columns * 8
    else:
        read = _padded(x.shape[1]) * x.shape[3] * convolution.axes[0].stride
        row = max(read, _padded(channels) * columns) * 4
    most = SLAB_BYTES * torch.get_num_threads()
    together = max(1, most // (rows * row))
    parts = min(rows, -(-rows * row // most))
    for first in range(0, images, together):
        for span in even_spans(0, rows, parts):
            yield slice(first, first + together), span


def _padded(channels: int) -> int:
    return -(-channels // LANES) * LANES


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
        array = array.copy()  # also if one element counts as contiguous
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Writable(array)))
