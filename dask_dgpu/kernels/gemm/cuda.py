"""``out += a @ b`` through cuBLAS, for the dtypes it has."""

from __future__ import annotations

from typing import Any

import cupy
import cupy.cublas
import numpy as np
from cupy.cuda import runtime
from cupy_backends.cuda.libs import cublas

Array = Any


def gemm(out: Array, a: Array, b: Array) -> None:
    """Add ``a @ b`` to ``out``; all C-contiguous, ``out`` float32 for float16 factors."""
    if a.dtype != np.float16:
        cupy.cublas.gemm("N", "N", a, b, out=out, alpha=1.0, beta=1.0)
        return
    (m, k), n = a.shape, b.shape[1]
    one = np.ones(1, np.float32)
    # column-major library: out.T += b.T @ a.T
    cublas.gemmEx(
        cupy.cuda.device.get_cublas_handle(),
        cublas.CUBLAS_OP_N,
        cublas.CUBLAS_OP_N,
        n,
        m,
        k,
        one.ctypes.data,
        b.data.ptr,
        runtime.CUDA_R_16F,
        n,
        a.data.ptr,
        runtime.CUDA_R_16F,
        k,
        one.ctypes.data,
        out.data.ptr,
        runtime.CUDA_R_32F,
        n,
        cublas.CUBLAS_COMPUTE_32F,
        cublas.CUBLAS_GEMM_DEFAULT,
    )
