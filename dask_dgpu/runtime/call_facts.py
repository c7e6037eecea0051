"""What is known of the calls of a step before they run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from dask_dgpu.runtime.calls import Array, Bound, Chain, Copied, Function, Ordered, first
from dask_dgpu.runtime.in_place import InPlace

Together = Callable[[Sequence[Sequence[Any]]], list[Array]]
"""A function of the arguments of many calls."""


def together(calls: Sequence[Function]) -> Together | None:
    """Return what computes blocks by one call of a function that all of these ``calls`` share.

    That is its method ``together``; ``None`` if it has no such.
    """
    functions = [_within(call) for call in calls]
    if len({*map(id, functions)}) != 1:
        return None
    if any(isinstance(call, Bound) and (call.options or call.named) for call in calls):
        return None
    found: Together | None = getattr(functions[0], "together", None)
    return found


def overwritten(call: Function, count: int) -> Collection[int]:
    """Return which of the ``count`` blocks of a call it may be given as spare, by their places.

    Those that the function within the call overwrites, and reads once.
    """
    if not getattr(_within(call), "overwrites", False):
        return ()
    return call.once() if isinstance(call, Ordered | Bound) else range(count)


def _within(call: Function) -> Function:
    """Return the function that a call calls with its blocks."""
    return call.function if isinstance(call, Ordered | Bound) else call


def last_function(call: Function) -> Function:
    """Return the function that returns the result of a call, the last one of fused tasks."""
    while True:
        if isinstance(call, Chain):
            *_, (_, call, _, _) = call.links or (("", first, (), ()),)
        elif isinstance(call, Copied | InPlace | Ordered | Bound):
            call = call.function
        else:
            return call


def of_one_block(call: Function) -> tuple[Function, Mapping[str, Any]] | None:
    """Return the function that a call calls with its only block, and its options."""
    if isinstance(call, Bound):
        alone = len(call.arguments) == len(call.blocks) == 1 and not (call.values or call.named)
        return (call.function, call.options or {}) if alone else None
    return None if isinstance(call, Chain | Copied | Ordered) else (call, {})


def has_copies(call: Function) -> bool:
    """Whether a call, or one within it, has its own copies of functions or values."""
    if isinstance(call, Chain):
        return any(has_copies(each) for _, each, _, _ in call.links)
    if isinstance(call, Bound) and any(has_copies(x) for _, x in (*call.values, *call.named)):
        return True
    if isinstance(call, InPlace | Ordered | Bound):
        return has_copies(call.function)
    return isinstance(call, Copied)


def arguments_of(call: Function, blocks: Sequence[Array]) -> Sequence[Any]:
    """Return what the function within a call is called with."""
    return call.given(blocks) if isinstance(call, Ordered | Bound) else blocks
