"""Python's garbage collector in a process with a scheduler.

A loop builds thousands of objects, which lets the collector go through all objects of the process
once in about ten loops. That takes 0.1 s and more, often longer than the loop.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

Thresholds = tuple[int, int, int]

LEAST: Thresholds = 2100, 30, 30
"""Python's own, 700, 10 and 10, times three: ``dask scheduler`` sets these in its process."""


def collect_less_often() -> Callable[[], None]:
    """Raise the collector's thresholds; return the function that restores them.

    Thresholds that are higher stay, and zero, which means never. What somebody else has set in the
    meantime is not restored.
    """
    before = gc.get_threshold()
    raised = tuple(now and max(now, least) for now, least in zip(before, LEAST, strict=True))
    gc.set_threshold(*raised)

    def restore() -> None:
        if gc.get_threshold() == raised:
            gc.set_threshold(*before)

    return restore
