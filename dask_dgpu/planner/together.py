"""Blocks that one task stages: all that one worker already holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

Key = Any


def together(scheduler: Scheduler, gang: Key, keys: Sequence[Key]) -> list[list[Key]]:
    """Group the blocks by their worker; a gang that the scheduler knows keeps its groups.

    Dask places a block alone if it does not exist yet, is on several workers, or on one that is
    paused. This runs outside of the event loop's thread, so it copies containers.
    """
    known = scheduler.tasks.get(gang)
    if known is not None:
        stages = sorted(known.dependencies, key=_number)
        read = [{block.key for block in list(stage.dependencies)} for stage in stages]
        groups = [[key for key in keys if key in blocks] for blocks in read]
        if sorted(key for group in groups for key in group) == sorted(keys):
            return groups
    found: defaultdict[Any, list[Key]] = defaultdict(list)
    for key in keys:
        ts = scheduler.tasks.get(key)
        holders = [] if ts is None else list(ts.who_has or ())
        one = len(holders) == 1 and holders[0] in scheduler.running
        found[holders[0].address if one else key].append(key)
    return list(found.values())


def _number(stage: Any) -> int:
    """Return the number of a ``stage`` task."""
    _, number = stage.key
    return int(number)
