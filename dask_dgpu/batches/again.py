"""After memory or a worker did not last: once more, with half of the planned bytes."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

from dask.utils import format_bytes

from dask_dgpu.batches.plan import Plan
from dask_dgpu.batches.windows.client import LostError
from dask_dgpu.errors import OutOfMemoryError
from dask_dgpu.kernels.device.memory import lacks_memory

SHARE = 0.5
"""Share of the planned bytes that the second attempt may use."""

T = TypeVar("T")
Attempt = Callable[[], T]


def twice(
    plan: Plan,
    first: Attempt[T],
    smaller: Callable[[bool], tuple[int, Attempt[T]] | None],
    may_repeat: Callable[[], bool] = lambda: True,
) -> T:
    """Return the result of an attempt, or of a second one after a lack of memory or a loss.

    ``smaller`` returns its planned bytes and the attempt, ``None`` if nothing is smaller. It is
    called with whether a worker was lost, for then it need not be smaller.
    """
    try:
        return first()
    except Exception as error:
        is_lost = isinstance(error, LostError)
        if not (may_repeat() and (is_lost or lacks_memory(error))):
            raise
    gc.collect()  # frames of the error hold arrays
    found = smaller(is_lost)
    if found is None:
        raise _out_of_memory(plan, None)
    nbytes, second = found
    try:
        return second()
    except Exception as error:
        if not lacks_memory(error):
            raise
        raise _out_of_memory(plan, nbytes) from error


def _out_of_memory(plan: Plan, again: int | None) -> OutOfMemoryError:
    """Return the error of a plan, and of ``again`` bytes for a second attempt."""
    planned, first = plan.peak_bytes, format_bytes(plan.peak_bytes)
    if again is None:
        message = (
            f"{plan.title} ran out of memory with {first} planned on each device, and cannot be "
            "cut to half of it"
        )
        return OutOfMemoryError(message, planned, planned)
    second = format_bytes(again)
    # operands on workers take as much in any blocks
    smaller = second if again < planned else "as much in smaller blocks"
    message = (
        f"{plan.title} ran out of memory twice: with {first} planned on each device, and with "
        f"{smaller}; set dgpu.memory.limit to less than {second}"
    )
    return OutOfMemoryError(message, planned, again)
