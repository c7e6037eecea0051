"""Clocks and records of the lanes of a CUDA device, which the host reads after a program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cupy


@dataclass(frozen=True)
class Watch:
    """The waits of the ``compute`` lane, and a stream for an ``observer`` of transfers.

    Each wait has an event before it and one after it.
    """

    compute: Any
    observer: Any
    waits: list[tuple[Any, Any]]


class LaneClock:
    """Reads the time on a lane without a wait of the host; its first tick is now."""

    def __init__(self, lane: Any) -> None:
        self._lane = lane
        self._ticks = [lane.record()]

    def tick(self) -> None:
        """Mark the end of the lane's work so far."""
        self._ticks.append(self._lane.record())

    def seconds_ago(self) -> list[float]:
        """Return the age of each tick, oldest first; the lane has just passed the last one."""
        last = self._ticks[-1]
        return [cupy.cuda.get_elapsed_time(tick, last) / 1e3 for tick in self._ticks]
