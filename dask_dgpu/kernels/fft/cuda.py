"""Complex transforms along one axis by cuFFT, without copying the lines first, and its plans.

CuPy copies a block if it is a view, or if the axis is not its last. cuFFT needs neither: lines may
have any stride and any distance. The lines of the result are contiguous.
"""

from __future__ import annotations

import threading
from typing import Any

import cupy
import numpy as np
from cupy.cuda import cufft

Array = Any

TYPES = {"complex64": cufft.CUFFT_C2C, "complex128": cufft.CUFFT_Z2Z}
MOST_CALLS = 64
"""With more calls than this, a copy is faster."""
LARGEST = 2**31 - 1


class _Ready(type):
    """A replacement for a class of plans; ``isinstance`` accepts the original's objects."""

    kind: Any

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Create a plan, and wait until all of it is on the device."""
        plan = cls.kind(*args, **kwargs)
        # cheap: the creation of a plan waits for all earlier work on the device anyway
        cupy.cuda.Stream.null.synchronize()
        return plan

    def __instancecheck__(cls, plan: Any) -> bool:
        return isinstance(plan, cls.kind)


class ReadyPlans:
    """A context in which CuPy returns plans only when they are ready; any thread may enter it.

    A plan copies the address of its twiddle factors to the device on the legacy stream, whatever
    CuPy's current stream is (https://github.com/cupy/cupy/issues/7928), and the host does not wait
    for the copy. The lanes of a program do not wait for the legacy stream: on GPUs shared by
    several processes, transforms started too early and read at address zero.

    CuPy has no hook for the creation of plans, which also happens in the ``cupy.fft`` of a user's
    block function. So its two classes of plans are replaced until the last thread leaves.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._within = 0
        self._kinds = {"Plan1d": cufft.Plan1d, "PlanNd": cufft.PlanNd}

    def __enter__(self) -> None:
        with self._lock:
            self._within += 1
            if self._within == 1:
                for name, kind in self._kinds.items():
                    setattr(cufft, name, _Ready(name, (), {"kind": kind}))

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._within -= 1
            if self._within == 0:
                for name, kind in self._kinds.items():
                    setattr(cufft, name, kind)


ready_plans = ReadyPlans()


def transformed(
    block: Array, axis: int, *, inverse: bool, factor: float, overwrite: bool
) -> Array | None:
    """Transform a CuPy block of any strides along a whole axis, and multiply by a factor.

    Return ``None`` if cuFFT cannot read the lines in place: another dtype, too many calls, or
    strides of zero.
    """
    if block.dtype.name not in TYPES or block.size == 0 or block.shape[axis] == 1:
        return None
    n, step = block.shape[axis], block.strides[axis] // block.itemsize
    others = [k for k in range(block.ndim) if k != axis]
    others.sort(key=lambda k: -block.strides[k])
    lines = block.transpose(*others, axis)
    calls, count, distance = _batches(lines)
    if calls > MOST_CALLS or not 0 < step <= LARGEST or not 0 < distance <= LARGEST:
        return None
    in_place = overwrite and step == 1
    out = lines if in_place else cupy.empty(lines.shape, block.dtype)
    plan = _plan(block.dtype.name, n, step, distance, distance if in_place else n, count)
    direction = cufft.CUFFT_INVERSE if inverse else cufft.CUFFT_FORWARD
    for at in _outer(lines.shape, calls):
        plan.fft(lines[at], out[at], direction)
    if factor != 1:
        out *= out.real.dtype.type(factor)  # before the transposition
    return out.transpose(*(sorted(range(block.ndim), key=[*others, axis].__getitem__)))


def _batches(lines: Array) -> tuple[int, int, int]:
    """Return the number of calls, the lines of a call, and the distance between those.

    A call transforms the lines of the last axes with one distance between them.
    """
    count, distance, calls, merged = 1, lines.shape[-1], 1, True
    for length, stride in zip(lines.shape[-2::-1], lines.strides[-2::-1], strict=True):
        apart = stride // lines.itemsize
        if length == 1:
            continue
        if count == 1 and merged:
            count, distance = length, apart
        elif merged and apart == count * distance:
            count *= length
        else:
            merged = False
            calls *= length
    return calls, count, distance


def _outer(shape: tuple[int, ...], calls: int) -> list[tuple[int, ...]]:
    """Return the places of the parts, one for each call."""
    depth, reached = 0, 1
    while reached < calls:
        reached *= shape[depth]
        depth += 1
    return list(np.ndindex(shape[:depth]))


def _plan(dtype: str, n: int, step: int, distance: int, back: int, count: int) -> Any:
    """Return cuFFT's plan for lines of one distance, from the cache if possible."""
    key = ("dask_dgpu", dtype, n, step, distance, back, count)
    plans = cupy.fft.config.get_plan_cache()
    plan = plans.get(key)
    if plan is None:
        plan = cufft.PlanNd(
            (n,), (n,), step, distance, (n,), 1, back, TYPES[dtype], count, "C", 0, n
        )
        plans[key] = plan
    return plan
