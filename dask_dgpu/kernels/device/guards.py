"""Arrays at the same addresses whose memory has other owners, or calls back when it is freed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import cupy

Array = Any


class _Guard:
    """Owner of memory, referred to by all arrays in it."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory


def guarded(array: Array, leave: Callable[[Any], None]) -> Array:
    """Return an array at the same addresses that calls back when it is freed.

    ``leave`` is called with the memory, by any thread but not at exit, when the returned array and
    all its views are gone. The memory is freed with its last reference. CuPy frees memory with the
    last array in it, and views outlive their array: so the guard watches the memory.
    """
    memory = array.data.mem
    guard = _Guard(memory)
    weakref.finalize(guard, leave, memory).atexit = False
    watched = cupy.cuda.UnownedMemory(memory.ptr, memory.size, guard, memory.device_id)
    return _placed(array, watched)


def bare(array: Array) -> Array:
    """Return an array at the same addresses without a guard."""
    guard = getattr(array.data.mem, "_owner", None)
    return _placed(array, guard.memory) if isinstance(guard, _Guard) else array


def each_array(block: Any, function: Callable[[Array], Array]) -> Any:
    """Replace all CuPy arrays of a block that are not empty by the results of a function.

    A block is an array, or an intermediate value of a reduction that contains arrays.
    """
    if isinstance(block, cupy.ndarray):
        return function(block) if block.size else block
    if type(block) is dict:
        return {key: each_array(value, function) for key, value in block.items()}
    if type(block) in (list, tuple):
        return type(block)(each_array(value, function) for value in block)
    if isinstance(block, tuple) and hasattr(block, "_make"):  # factors of a matrix, sums
        return type(block)._make(each_array(value, function) for value in block)
    return block


def _placed(array: Array, memory: Any) -> Array:
    """Return an array at the same addresses that keeps other memory alive."""
    place = cupy.cuda.MemoryPointer(memory, array.data.ptr - memory.ptr)
    return cupy.ndarray(array.shape, array.dtype, place, array.strides)
