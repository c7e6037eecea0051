"""Sequences of work that a device has recorded: which are, and for how long they are kept.

::

    call      1        2                 3           4, with another large array elsewhere
              issued   recorded, sent    sent        recorded again with a copy of it, sent

The first call issues the work, which compiles kernels and connects ranks. The second one copies
small arrays as far as the memory allows, and those that lie elsewhere than in the first call.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

logger = logging.getLogger(__name__)

Array = Any
Work = Callable[[Any, list[Array]], Any]
"""Issues launches for some arrays on a device whose lanes are joined; returns what they compute."""

COPIED = 0.5
"""Fraction of the memory for copies of arrays, wherever these are; larger ones may stay there."""

MOST_ATTEMPTS = 4
"""Number of recordings of one sequence, whose arrays may move between calls."""

MOST_SEQUENCES = 64


class Recorded(Protocol):
    """Launches that can be sent again, for other arrays of the same kinds.

    Results lie in memory of the recording: the next call overwrites them.
    """

    nbytes: int
    ended: bool

    def launch(self, arrays: Sequence[Array]) -> Any:
        """Send the launches on the current stream; return what they compute."""

    def outside(self, block: Any) -> Any:
        """Return a block with copies of the arrays in memory of the recording, made on the stream.

        Later steps may return views of its results, so this takes any block.
        """

    def end(self) -> None:
        """Forget the launches, from any thread; what they have computed stays."""


Record = Callable[[Sequence[Array], Collection[int], Work], Recorded]
"""Records work for arrays, of which it copies some for each call."""


@dataclass
class _Kept:
    kinds: tuple[Any, ...] = ()
    addresses: list[int] = field(default_factory=list)
    copied: set[int] = field(default_factory=set)
    attempts: int = 0
    recorded: Recorded | None = None

    def forget(self) -> None:
        if self.recorded is not None:
            self.recorded.end()
        self.recorded = None


class Sequences:
    """The sequences that a device has recorded; only its program thread calls this.

    ``record`` records one, and ``address`` returns where an array lies.
    """

    def __init__(self, record: Record, address: Callable[[Array], int]) -> None:
        self._record, self._address = record, address
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()

    def __len__(self) -> int:
        return sum(each.recorded is not None for each in self._kept.values())

    @property
    def nbytes(self) -> int:
        """The bytes of the device that all recordings keep."""
        return sum(each.recorded.nbytes for each in self._kept.values() if each.recorded)

    def find(
        self, key: Hashable, arrays: Sequence[Array], work: Work, limit: float
    ) -> Recorded | None:
        """Return the recording of some work for these arrays, ``None`` if it has to be issued.

        ``limit`` are the bytes that all recordings may keep. Those used first are forgotten.
        """
        kept = self._kept.setdefault(key, _Kept())
        self._kept.move_to_end(key)
        kinds = tuple((array.dtype, array.shape, array.strides) for array in arrays)
        addresses = [self._address(array) for array in arrays]
        if kept.kinds != kinds:
            kept.forget()
            self._kept[key] = _Kept(kinds, addresses, _smallest(arrays, COPIED * limit))
            return None
        pairs = enumerate(zip(addresses, kept.addresses, strict=True))
        moved = {at for at, (now, then) in pairs if now != then} - kept.copied
        recording = kept.recorded
        if recording is not None and not recording.ended and not moved:
            return recording
        kept.forget()
        kept.copied |= moved
        kept.addresses = addresses
        if kept.attempts < MOST_ATTEMPTS and limit > 0:
            kept.attempts += 1
            kept.recorded = self._recorded(kept, arrays, work, limit)
            self._shrink(limit)
        return kept.recorded

    def clear(self) -> None:
        """Forget everything."""
        for each in self._kept.values():
            each.forget()
        self._kept.clear()

    def _recorded(
        self, kept: _Kept, arrays: Sequence[Array], work: Work, limit: float
    ) -> Recorded | None:
        """Record work, ``None`` if that is not possible or takes too much memory."""
        try:
            recording = self._record(arrays, kept.copied, work)
        except Exception as error:
            logger.info("a sequence of launches cannot be recorded: %s", error)
            kept.attempts = MOST_ATTEMPTS
            return None
        if recording.nbytes <= limit:
            return recording
        logger.info("a recording would keep %d bytes, of %d at most", recording.nbytes, limit)
        kept.attempts = MOST_ATTEMPTS
        recording.end()
        return None

    def _shrink(self, limit: float) -> None:
        while self.nbytes > limit or len(self._kept) > MOST_SEQUENCES:
            _, kept = self._kept.popitem(last=False)
            kept.forget()


def _smallest(arrays: Sequence[Array], limit: float) -> set[int]:
    """Return which arrays, the smallest first, have so many bytes in all."""
    sizes: set[int] = set()
    for at in sorted(range(len(arrays)), key=lambda each: int(arrays[each].nbytes)):
        limit -= arrays[at].nbytes
        if limit < 0:
            break
        sizes.add(at)
    return sizes
