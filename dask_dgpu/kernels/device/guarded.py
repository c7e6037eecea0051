"""Device memory that somebody is told of when no array in it is left.

CuPy gives memory back as soon as the last array in it is gone, and views outlive the array
that they were taken of. So it is the memory that is watched, not an array.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cupy

from dask_dgpu.kernels.sums.compensated import Pair
from dask_dgpu.kernels.sums.partial import Partial

Array = Any


class _Guard:
    """Owns memory for the arrays that are made in it."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory


def guarded(array: Array, leave: Callable[[Any], None]) -> Array:
    """Return an array in the same place whose memory is watched.

    Parameters
    ----------
    array : cupy.ndarray
        The array.
    leave : callable
        Called with the memory when the array that is returned is gone, with all its views;
        it goes back when nobody refers to it any more. By any thread, but not at exit.
    """
    memory = array.data.mem
    guard = _Guard(memory)
    weakref.finalize(guard, leave, memory).atexit = False
    watched = cupy.cuda.UnownedMemory(memory.ptr, memory.size, guard, memory.device_id)
    return _placed(array, watched)


def bare(array: Array) -> Array:
    """Return an array in the same place whose memory is not watched, or no longer."""
    guard = getattr(array.data.mem, "_owner", None)
    return _placed(array, guard.memory) if isinstance(guard, _Guard) else array


def each_array(block: Any, function: Callable[[Array], Array]) -> Any:
    """Return a block whose CuPy arrays are what a function makes of them.

    Parameters
    ----------
    block : object
        An array, or what Dask's functions or ours put some into on the way to a reduction.
    function : callable
        Takes an array that is not empty.
    """
    if isinstance(block, cupy.ndarray):
        return function(block) if block.size else block
    if type(block) is dict:
        return {key: each_array(value, function) for key, value in block.items()}
    if type(block) in (list, tuple):
        return type(block)(each_array(value, function) for value in block)
    if isinstance(block, Partial) and isinstance(block.sums, Pair):
        return replace(block, sums=block.sums.each(lambda array: each_array(array, function)))
    return block


def _placed(array: Array, memory: Any) -> Array:
    """Return an array at the same addresses that keeps other memory alive."""
    place = cupy.cuda.MemoryPointer(memory, array.data.ptr - memory.ptr)
    return cupy.ndarray(array.shape, array.dtype, place, array.strides)
