"""Products by cuBLAS, on the current stream."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np
from cupy.cuda import device, runtime
from cupy_backends.cuda.libs import cublas

from dask_dgpu.kernels.gemm import BLAS, add_product, add_vector, column_major, one_of

Array = Any
Product = tuple[Array, Array, Array]

MOST_MULTIPLIED = 1 << 27
"""Multiplications of a product that takes about as long as its launch."""

OPTIONS = {"N": cublas.CUBLAS_OP_N, "T": cublas.CUBLAS_OP_T}


def call_cublas(routine: str, dtype: np.dtype[Any], *arguments: Any) -> None:
    """Call a routine of cuBLAS for a dtype."""
    letter = {"f": "s", "d": "d", "F": "c", "D": "z"}[dtype.char]
    function = getattr(cublas, f"{letter}{routine}")
    function(device.get_cublas_handle(), *map(_value, arguments))


def _value(argument: Any) -> int:
    """Return an option's number, an integer itself, or the address of an array."""
    if isinstance(argument, str):
        return int(OPTIONS[argument])
    if isinstance(argument, cupy.ndarray):
        return int(argument.data.ptr)
    return int(argument.ctypes.data if isinstance(argument, np.ndarray) else argument)


def is_recorded() -> bool:
    """Whether the current stream is recorded: then CuPy refuses to call cuBLAS."""
    return bool(runtime.streamIsCapturing(cupy.cuda.get_current_stream().ptr))


def accumulate_cuda(out: Array, a: Array, b: Array) -> None:
    """Add ``a @ b`` to ``out``, all of one dtype and none empty."""
    if is_recorded():
        from dask_dgpu.kernels.gemm.recorded import accumulate_recorded

        accumulate_recorded(out, a, b)
    elif b.shape[1] == 1:
        add_vector(call_cublas, out[:, 0], a, b[:, 0])
    elif a.shape[0] == 1:
        add_vector(call_cublas, out[0], b.T, a[0])
    else:
        add_product(call_cublas, out, a, b)


def accumulate_batches(products: Sequence[Product]) -> list[Product]:
    """Add small products of one shape and dtype in one launch; return the others.

    In a recording all are others: addresses on the host could not be kept.
    """
    if is_recorded():
        return list(products)
    others: list[Product] = []
    batches: defaultdict[Any, list[Product]] = defaultdict(list)
    for out, a, b in products:
        dtypes = {out.dtype.name, a.dtype.name, b.dtype.name}
        large = out.size * a.shape[1] > MOST_MULTIPLIED
        if large or 1 in out.shape or len(dtypes) > 1 or not dtypes < {*BLAS}:
            others.append((out, a, b))
        elif out.size and a.shape[1]:
            # out.T += b.T @ a.T: the library is column-major
            (left, ld_left, b), (right, ld_right, a) = column_major(b.T), column_major(a.T)
            ld_out = max(out.shape[1], out.strides[0] // out.itemsize)
            key = (a.shape, b.shape, left, ld_left, right, ld_right, ld_out, out.dtype)
            batches[key].append((out, b, a))
    for key, batch in batches.items():
        _multiply_batch(batch, *key)
    return others


def _multiply_batch(
    batch: list[Product],
    a: tuple[int, int],
    b: tuple[int, int],
    left: str,
    ld_left: int,
    right: str,
    ld_right: int,
    ld_out: int,
    dtype: np.dtype[Any],
) -> None:
    """Multiply matrices of transposed shapes ``b`` and ``a`` in one launch."""
    outs, lefts, rights = np.array([[array.data.ptr for array in arrays] for arrays in batch]).T
    addresses = cupy.asarray(np.stack([lefts, rights, outs]).astype(np.uint64))
    one = one_of(dtype)
    (n, k), m, row = b, a[1], addresses.strides[0]
    numbers = n, m, k, one, addresses.data.ptr, ld_left, addresses.data.ptr + row, ld_right
    target = addresses.data.ptr + 2 * row
    call_cublas("gemmBatched", dtype, left, right, *numbers, one, target, ld_out, len(batch))


def accumulate_half(out: Array, a: Array, b: Array) -> None:
    """Add the product of float16 factors to float32, none of them empty."""
    (m, k), n = a.shape, b.shape[1]
    # out.T += b.T @ a.T: the library is column-major
    (left, ld_left, b), (right, ld_right, a) = column_major(b.T), column_major(a.T)
    one = one_of(np.dtype(np.float32))
    cublas.gemmEx(
        device.get_cublas_handle(),
        OPTIONS[left],
        OPTIONS[right],
        n,
        m,
        k,
        one.ctypes.data,
        b.data.ptr,
        runtime.CUDA_R_16F,
        ld_left,
        a.data.ptr,
        runtime.CUDA_R_16F,
        ld_right,
        one.ctypes.data,
        out.data.ptr,
        runtime.CUDA_R_32F,
        max(n, out.strides[0] // out.itemsize),
        cublas.CUBLAS_COMPUTE_32F,
        cublas.CUBLAS_GEMM_DEFAULT,
    )
