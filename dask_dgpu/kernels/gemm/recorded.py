"""Products in recordings, by torch: CuPy calls cuBLAS on no stream that is recorded."""

from __future__ import annotations

from typing import Any

import cupy
import torch

from dask_dgpu.torch_streams import torch_stream

Array = Any


def accumulate_recorded(out: Array, a: Array, b: Array) -> None:
    """Add ``a @ b`` to ``out``, all of one dtype and none empty, on the current stream.

    Raises
    ------
    NotImplementedError
        If torch multiplies in TF32, which it does if its user allows it.
    """
    if torch.get_float32_matmul_precision() != "highest":
        raise NotImplementedError("products in TF32 are not recorded")
    device = torch.device("cuda", out.device.id)
    tensors = [torch.as_tensor(each, device=device) for each in (out, dense(a), dense(b))]
    with torch.cuda.stream(torch_stream(cupy.cuda.get_current_stream().ptr, device.index)):
        target, left, right = tensors
        if b.shape[1] == 1:
            target[:, 0].addmv_(left, right[:, 0])
        elif a.shape[0] == 1:
            target[0].addmv_(right.T, left[0])
        else:
            target.addmm_(left, right)


def dense(matrix: Array) -> Array:
    """Return a matrix whose rows or columns have adjacent elements, so torch does not copy it."""
    rows, columns = matrix.shape
    down, right = matrix.strides
    size = matrix.itemsize
    by_rows = right == size and down >= columns * size
    by_columns = down == size and right >= rows * size
    return matrix if by_rows or by_columns else cupy.ascontiguousarray(matrix)
