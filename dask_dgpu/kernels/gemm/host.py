"""Products by BLAS, without the GIL.

BLAS has a quicker routine than the product for ``x.T @ x`` (``syrk``). cuBLAS has not: its product
of a tall matrix by itself is eight times as quick as its ``syrk``.
"""

from __future__ import annotations

import ctypes
from functools import cache, lru_cache
from typing import Any

import numpy as np
from scipy.linalg import cython_blas

from dask_dgpu.kernels.gemm import add_product, add_vector, column_major, one_of

Array = Any

KEPT_INTEGERS = 1024
"""Sizes and strides, whose references are kept: to make one takes as long as a small product."""

ARGUMENTS = {"gemm": 13, "gemv": 11, "syrk": 10}


def accumulate_host(out: Array, a: Array, b: Array) -> None:
    """Add ``a @ b`` to ``out``, all of one dtype and none empty."""
    (m, k), n = a.shape, b.shape[1]
    if n == 1:
        add_vector(call_blas, out[:, 0], a, b[:, 0])
    elif m == 1:
        add_vector(call_blas, out[0], b.T, a[0])
    elif k >= m == n and _same_memory(a, b.T):
        _add_square(out, a)
    else:
        add_product(call_blas, out, a, b)


def _add_square(out: Array, a: Array) -> None:
    """Add ``a @ a.T`` to ``out``, from one triangle of it."""
    option, leading, a = column_major(a)
    n, k = a.shape
    half = np.zeros((n, n), out.dtype)
    one = one_of(out.dtype)
    # "L" of the column-major library is the upper triangle here
    call_blas("syrk", out.dtype, "L", option, n, k, one, a, leading, one, half, n)
    out += half
    out += np.triu(half, 1).T


def _same_memory(a: Array, b: Array) -> bool:
    return a.shape == b.shape and a.strides == b.strides and a.ctypes.data == b.ctypes.data


def call_blas(routine: str, dtype: np.dtype[Any], *arguments: Any) -> None:
    """Call a routine of BLAS for a dtype: ``gemm``, ``gemv`` or ``syrk``."""
    letter = {"f": "s", "d": "d", "F": "c", "D": "z"}[dtype.char]
    function = _blas(f"{letter}{routine}", ARGUMENTS[routine])
    function(*map(_pointer, arguments))


def _pointer(argument: Any) -> Any:
    """Return the address of an argument; BLAS takes all by reference."""
    if isinstance(argument, np.ndarray):
        return argument.__array_interface__["data"][0]
    return _option(argument) if isinstance(argument, str) else _integer(argument)


@cache
def _option(option: str) -> Any:
    return ctypes.byref(ctypes.c_char(option.encode()))


@lru_cache(maxsize=KEPT_INTEGERS)
def _integer(value: int) -> Any:
    """Return a reference to a number; BLAS only reads it."""
    return ctypes.byref(ctypes.c_int(value))


@cache
def _blas(name: str, arguments: int) -> Any:
    """Return a function of SciPy's BLAS; those in ``scipy.linalg.blas`` hold the GIL."""
    capsules: Any = cython_blas.__pyx_capi__
    text, pointer, python = ctypes.c_char_p, ctypes.c_void_p, ctypes.pythonapi
    get_name = ctypes.PYFUNCTYPE(text, ctypes.py_object)(("PyCapsule_GetName", python))
    prototype = ctypes.PYFUNCTYPE(pointer, ctypes.py_object, text)
    get_pointer = prototype(("PyCapsule_GetPointer", python))
    address = get_pointer(capsules[name], get_name(capsules[name]))
    return ctypes.CFUNCTYPE(None, *[pointer] * arguments)(address)
