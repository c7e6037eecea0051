"""``out += a @ b`` in CUDA memory."""

from __future__ import annotations

from typing import Any

import cupy
import cupy.cublas
import numpy as np
from cupy.cuda import runtime
from cupy_backends.cuda.libs import cublas

from dask_dgpu.kernels.gemm import BLAS, SLAB_BYTES, accumulate_slabs

Array = Any


def accumulate_cuda(out: Array, a: Array, b: Array) -> None:
    """Add ``a @ b`` to ``out``, none of them empty; as ``gemm.accumulate`` does."""
    if a.dtype == np.float16:
        _accumulate_half(out, a, b)
    elif a.dtype.name in BLAS:
        cupy.cublas.gemm("N", "N", a, b, out=out, alpha=1.0, beta=1.0)
    else:  # cuBLAS has no integers
        accumulate_slabs(out, a, b, SLAB_BYTES << 8)


def _accumulate_half(out: Array, a: Array, b: Array) -> None:
    """Add the product of float16 factors to float32."""
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
