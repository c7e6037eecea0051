"""Products by cuBLAS, on the current stream."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
from cupy.cuda import device, runtime
from cupy_backends.cuda.libs import cublas

from dask_dgpu.kernels.gemm import add_product, add_vector, column_major, one_of

Array = Any

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
