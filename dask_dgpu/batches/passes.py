"""Transforms in passes over host arrays: along some axes at a time, if all do not fit together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from dask_dgpu.batches import rules
from dask_dgpu.batches.call import Call, Request
from dask_dgpu.batches.operations import resolve
from dask_dgpu.batches.sources import Operand, Slot
from dask_dgpu.kernels.fft import TO_REAL

Stage = tuple[int, int]
"""An axis and the length of its transform, -1 for that of the axis."""

COMPLEX = {"rfft": "fft", "irfft": "ifft"}
"""Transforms from and to real numbers, and those along their other axes."""


def in_passes(call: Call, room: float) -> tuple[Call, ...]:
    """Return calls that follow each other, each along as many axes as fit in ``room`` bytes.

    It is the call itself if that fits, or cannot be split. The operands of later calls have no
    source yet.
    """
    stages = () if _fits(call, room) else _stages(call)
    if len(stages) < 2:
        return (call,)
    found: list[Call] = []
    operand = call.operands[0]
    while stages:
        together = len(stages) if found else len(stages) - 1
        each = _along(call, operand, stages[:together])
        while together > 1 and not _fits(each, room):
            together -= 1
            each = _along(call, operand, stages[:together])
        found.append(each)
        operand = Operand(f"the result of pass {len(found)}", None, each.shape, each.dtype)
        stages = stages[together:]
    return tuple(found)


def _fits(call: Call, room: float) -> bool:
    return call.peak(call.smallest) <= room


def _stages(call: Call) -> tuple[Stage, ...]:
    """Return the transforms along single axes in NumPy's order, none for other operations.

    Real numbers come first in transforms from them, and last in transforms to them.
    """
    if call.operation.rule is not rules.transform:
        return ()
    values, shape = call.values, call.operands[0].shape
    axes = rules.transformed_axes(values, len(shape))
    given = values.get("s")
    given = [None] * len(axes) if given is None else list(given)
    lengths = [-1 if n is None else int(n) for n in given]
    is_to_real = _kind(call) in TO_REAL
    if is_to_real and given[-1] is None:
        lengths[-1] = 2 * (shape[axes[-1]] - 1)
    stages = tuple(zip(axes, lengths, strict=True))[::-1]
    return stages[1:] + stages[:1] if is_to_real else stages


def _kind(call: Call) -> str:
    return call.operation.name.rstrip("2n")


def _along(call: Call, operand: Operand, stages: Sequence[Stage]) -> Call:
    """Return the transform of an operand along some of the axes of a call."""
    values, kind = call.values, _kind(call)
    (*_, real) = rules.transformed_axes(values, len(operand.shape))
    if real not in [axis for axis, _ in stages]:
        kind = COMPLEX.get(kind, kind)
    ordered = stages if kind in TO_REAL else stages[::-1]  # the axis of real numbers is the last
    options: dict[str, Any] = {name: values[name] for name in ("type", "norm") if name in values}
    options |= {"axes": tuple(axis for axis, _ in ordered), "s": tuple(n for _, n in ordered)}
    found = Call.planned(Request(resolve(f"{kind}n"), (Slot(0),), options, (operand,), call.site))
    assert found is not None  # transforms have a rule
    return found


def temporary_bytes(calls: Sequence[Call]) -> int:
    """Return the bytes of temporary arrays, for a NumPy array as the last call's result."""
    last = calls[-1]
    temporaries = {id(call): call for call in targets(calls, last, lambda call: call)}
    del temporaries[id(last)]
    return sum(prod(each.shape) * each.dtype.itemsize for each in temporaries.values())


def targets(calls: Sequence[Call], out: Any, new: Callable[[Call], Any]) -> list[Any]:
    """Return the array for the result of each call, ``out`` for the last one.

    The others go to ``out`` too if it is a NumPy array of their shape and dtype, or else over the
    result before them if it is temporary, or to a ``new`` array.
    """
    found: list[Any] = []
    for call in calls[:-1]:
        like = [each for each in (out, *found[-1:]) if _is_like(call, each)]
        found.append(like[0] if like else new(call))
    return [*found, out]


def _is_like(call: Call, other: Any) -> bool:
    """Whether the result of a call can be read from and written to an array."""
    is_array = isinstance(other, np.ndarray | Call)
    return is_array and call.shape == other.shape and call.dtype == other.dtype
