"""Matrix multiplication ``out += a @ b`` on one device, without a temporary as large as ``out``."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from scipy.linalg import cython_blas

Array = Any

BLAS = {"float32": "sgemm", "float64": "dgemm", "complex64": "cgemm", "complex128": "zgemm"}

SLAB_BYTES = 1 << 20
"""Approximate size of the temporaries of integer products."""


def factor_dtype(kind: str, dtype: str) -> str:
    """Return the dtype of the factors of a product of ``dtype`` on a kind of device."""
    return "float32" if kind == "cpu" and dtype == "float16" else dtype  # no BLAS has float16


def accumulate(out: Array, a: Array, b: Array) -> None:
    """Add ``a @ b`` to ``out``, on the current stream if the arrays are CuPy's.

    All are C-contiguous; the factors have the dtype :func:`factor_dtype`. ``out`` has that too, but
    on a GPU float32 if the factors are float16.

    BLAS and cuBLAS add in place: BLAS without the GIL, cuBLAS in full precision, no TF32. NumPy's
    loops and CuPy's own kernel multiply integers and booleans, which wrap around as in NumPy.
    """
    if 0 in (*out.shape, a.shape[1]):
        return
    if not isinstance(out, np.ndarray):
        from dask_dgpu.kernels.gemm.cuda import accumulate_cuda

        accumulate_cuda(out, a, b)
    elif out.dtype.name in BLAS:
        _add_product(_blas(BLAS[out.dtype.name]), out, a, b)
    else:
        accumulate_slabs(out, a, b, SLAB_BYTES)


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


def accumulate_slabs(out: Array, a: Array, b: Array, nbytes: int) -> None:
    """Add ``a @ b`` to ``out`` through temporaries of about this size, slabs of rows."""
    rows = max(1, nbytes // (out.shape[1] * out.itemsize))
    for top in range(0, out.shape[0], rows):
        slab = out[top : top + rows]
        slab += a[top : top + rows] @ b
