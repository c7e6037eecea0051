"""Runs that wait for blocks: those of tasks on workers, and of other runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dask_dgpu.runtime.scheduler.run import Run

Key = Any


class Waiting:
    """The runs without tasks whose blocks are not all in memory yet."""

    def __init__(self) -> None:
        self._runs: defaultdict[Key, list[Run]] = defaultdict(list)
        self._awaited: dict[Key, set[Key]] = {}

    def __contains__(self, key: Key) -> bool:
        """Return whether a run waits for this block."""
        return key in self._runs

    def __len__(self) -> int:
        return len(self._awaited)

    def add(self, run: Run, awaited: Collection[Key]) -> None:
        """Let a run wait for these blocks."""
        self._awaited[run.key] = set(awaited)
        for key in awaited:
            self._runs[key].append(run)

    def arrived(self, key: Key) -> list[Run]:
        """Note a block; return the runs that wait for no more."""
        complete = []
        for run in self._runs.pop(key, []):
            left = self._awaited[run.key]
            left.discard(key)
            if not left:
                del self._awaited[run.key]
                complete.append(run)
        return complete

    def missed(self, key: Key) -> list[Run]:
        """Return the runs that wait for a block in vain; they wait no more."""
        return [self.discard(run) for run in list(self._runs.get(key, []))]

    def discard(self, run: Run) -> Run:
        """Let a run wait no more."""
        for key in self._awaited.pop(run.key, ()):
            self._runs[key] = [each for each in self._runs[key] if each is not run]
            if not self._runs[key]:
                del self._runs[key]
        return run
