"""After memory or a worker did not last: the rest of a call once more, in smaller batches."""

from __future__ import annotations

from collections.abc import Container, Iterator

from dask.utils import format_bytes

from dask_dgpu.batches.call import Call
from dask_dgpu.batches.choose import choose
from dask_dgpu.batches.notation import Lengths, Span, Tile
from dask_dgpu.batches.plan import Plan
from dask_dgpu.batches.windows.client import LostError
from dask_dgpu.errors import OutOfMemoryError
from dask_dgpu.kernels.device.memory import lacks_memory

SHARE = 0.5
"""Share of the planned bytes that the rest may use."""


def is_worth_another_try(error: Exception) -> bool:
    """Return whether memory or a worker did not last, so that smaller batches may do."""
    return isinstance(error, LostError) or lacks_memory(error)


def halved(call: Call, plan: Plan, failed: type[Exception]) -> Lengths:
    """Return lengths for batches of half the planned bytes after a batch has failed.

    If none are as small, it is the smallest batch after a loss, and after a lack of memory an
    ``OutOfMemoryError``.
    """
    room = SHARE * plan.peak_bytes

    def batches(lengths: Lengths) -> float:
        return call.notation.batches(lengths)

    lengths = choose(call.notation, call.peak, batches, room)
    if lengths is None and issubclass(failed, LostError):
        return call.smallest
    if lengths is None:
        raise out_of_memory(plan.title, plan.peak_bytes, None)
    return lengths


def rest(
    call: Call, plan: Plan, smaller: Lengths, written: Container[tuple[Span, ...]]
) -> Iterator[Tile]:
    """Yield smaller tiles of those parts of the result that are not written."""
    notation = call.notation
    parts = {
        notation.write_spans(call.shape, tile): notation.summed(tile)
        for tile in notation.tiles(plan.lengths)
    }
    for spans, tile in parts.items():
        if spans not in written:
            yield from notation.tiles(smaller, tile)


def out_of_memory(title: str, planned: int, again: int | None) -> OutOfMemoryError:
    """Return the error of a call: the bytes planned on a device, and ``again`` for smaller parts.

    ``again`` is ``None`` if no parts are half as large.
    """
    first = format_bytes(planned)
    if again is None:
        message = (
            f"{title} ran out of memory with {first} planned on each device, and cannot be cut to "
            "half of it"
        )
        return OutOfMemoryError(message, planned, planned)
    second = format_bytes(again)
    # operands on workers take as much in any blocks
    smaller = second if again < planned else "as much in smaller blocks"
    message = (
        f"{title} ran out of memory twice: with {first} planned on each device, and with "
        f"{smaller}; set dgpu.memory.limit to less than {second}"
    )
    return OutOfMemoryError(message, planned, again)
