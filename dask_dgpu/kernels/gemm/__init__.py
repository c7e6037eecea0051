"""``out += a @ b`` on one device, without a temporary of the size of ``out``."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from scipy.linalg import cython_blas

Array = Any

BLAS = {"float32": "sgemm", "float64": "dgemm", "complex64": "cgemm", "complex128": "zgemm"}

SLAB_BYTES = 1 << 20
"""Integer products are made in temporaries of about this size."""


def accumulate_host(out: Array, a: Array, b: Array) -> None:
    """Add ``a @ b`` to ``out`` in NumPy memory.

    Parameters
    ----------
    out : numpy.ndarray
        C-contiguous, of shape (m, n).
    a, b : numpy.ndarray
        Of shapes (m, k) and (k, n) and the dtype of ``out``; C-contiguous.

    Notes
    -----
    Floating-point products run in BLAS, which adds in place, and without the GIL. NumPy's own
    loops serve integers and booleans; they wrap around as NumPy does.
    """
    if 0 in (*out.shape, a.shape[1]):
        return
    if out.dtype.name in BLAS:
        _add_product(_blas(BLAS[out.dtype.name]), out, a, b)
        return
    rows = max(1, SLAB_BYTES // (out.shape[1] * out.itemsize))
    for top in range(0, out.shape[0], rows):
        slab = out[top : top + rows]
        np.add(slab, np.matmul(a[top : top + rows], b), out=slab)


def _add_product(gemm: Any, out: Array, a: Array, b: Array) -> None:
    a, b = (np.ascontiguousarray(each, out.dtype) for each in (a, b))
    no_transpose = ctypes.byref(ctypes.c_char(b"N"))
    m, n, k = (ctypes.byref(ctypes.c_int(size)) for size in (*out.shape, a.shape[1]))
    one = np.ones(1, out.dtype)
    # BLAS is column-major: out.T += b.T @ a.T, none of them copied
    left, right, result, factor = (array.ctypes.data for array in (b, a, out, one))
    gemm(no_transpose, no_transpose, n, m, k, factor, left, n, right, k, factor, result, n)


@cache
def _blas(name: str) -> Any:
    """Return a function of SciPy's BLAS; those in ``scipy.linalg.blas`` hold the GIL."""
    capsules: Any = cython_blas.__pyx_capi__
    text, pointer, python = ctypes.c_char_p, ctypes.c_void_p, ctypes.pythonapi
    get_name = ctypes.PYFUNCTYPE(text, ctypes.py_object)(("PyCapsule_GetName", python))
    prototype = ctypes.PYFUNCTYPE(pointer, ctypes.py_object, text)
    get_pointer = prototype(("PyCapsule_GetPointer", python))
    address = get_pointer(capsules[name], get_name(capsules[name]))
    return ctypes.CFUNCTYPE(None, *[pointer] * 13)(address)


def accumulate_cuda(out: Array, a: Array, b: Array) -> None:
    """Add ``a @ b`` to ``out`` in CUDA memory, on the current CuPy stream.

    Parameters
    ----------
    out : cupy.ndarray
        C-contiguous, of shape (m, n); float32 when the factors are float16.
    a, b : cupy.ndarray
        Of shapes (m, k) and (k, n), C-contiguous.

    Notes
    -----
    cuBLAS adds in place, in full precision: no TF32. It has no integers; CuPy's
    own kernel serves those.
    """
    if 0 in (*out.shape, a.shape[1]):
        return
    if a.dtype.name in (*BLAS, "float16"):
        from dask_dgpu.kernels.gemm import cuda as cublas

        cublas.gemm(out, a, b)
        return
    import cupy

    rows = max(1, (SLAB_BYTES << 8) // (out.shape[1] * out.itemsize))
    for top in range(0, out.shape[0], rows):
        slab = out[top : top + rows]
        cupy.add(slab, cupy.matmul(a[top : top + rows], b), out=slab)
