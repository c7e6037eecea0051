"""Routines of BLAS, without the GIL."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from scipy.linalg import cython_blas

ARGUMENTS = {"gemm": 13, "gemv": 11, "syrk": 10}


def call_blas(routine: str, dtype: np.dtype[Any], *arguments: Any) -> None:
    """Call a routine of BLAS for a dtype: ``gemm``, ``gemv`` or ``syrk``."""
    letter = {"f": "s", "d": "d", "F": "c", "D": "z"}[dtype.char]
    function = _blas(f"{letter}{routine}", ARGUMENTS[routine])
    function(*map(_pointer, arguments))


def _pointer(argument: Any) -> Any:
    """Return the address of an argument; BLAS takes all by reference."""
    if isinstance(argument, str):
        return ctypes.byref(ctypes.c_char(argument.encode()))
    if isinstance(argument, np.ndarray):
        return argument.ctypes.data
    return ctypes.byref(ctypes.c_int(argument))


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
