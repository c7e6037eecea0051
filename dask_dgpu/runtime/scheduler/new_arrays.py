"""Places of new arrays: equal chunks lie on equal workers, whatever else runs.

Dask gives each new block to a worker that is idle at that moment, so blocks with the same index of
two arrays are on different workers. Each worker gets consecutive blocks instead, as many as the
others. This is a preference: other workers may steal the tasks, and compute them after a loss. It
ends with the computation, so results are as free as Dask's own.

The same holds for data that a client sends to a gang. If its blocks lie on other workers in each
step of a loop, each step plans, sends and keeps another program.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from graph_opt.model.layout import dealt

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState

Key = Any


class NewArrays:
    """Places the requested arrays that are computed from nothing, and data for gangs.

    Other arrays lie where their inputs are. Tasks whose results nobody requested stay with Dask's
    queue, which limits how many of them are in memory.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._expected: set[str] = set()
        self._placed: set[Key] = set()
        for worker in scheduler.stream_comms:
            self._keep_no_messages(worker)

    def expect(self, keys: Iterable[Key]) -> None:
        """Note the keys of requested arrays; any thread may call this before they are read."""
        self._expected |= {key[0] for key in keys if isinstance(key, tuple)}

    def place(self, keys: Collection[Key], gangs: Iterable[Key]) -> None:
        """Place those of the requested keys that are of arrays, unless users chose workers.

        Place ``stage`` tasks of these gangs too, if they hold their blocks.
        """
        names, self._expected = self._expected, set()
        found: defaultdict[str, list[Key]] = defaultdict(list)
        for key in keys:
            if isinstance(key, tuple) and len(key) > 1 and key[0] in names:
                found[key[0]].append(key)
        for gang in gangs:
            for stage in self.scheduler.tasks[gang].dependencies:
                held: Key = stage.key
                if not stage.dependencies:
                    found[held[0]].append(held)
        workers = list(self.scheduler.workers)
        for blocks in found.values() if workers else ():
            for key, rank in zip(sorted(blocks), dealt(len(blocks), len(workers)), strict=True):
                for ts in _chain(self.scheduler.tasks[key]):
                    self.scheduler.set_restrictions({ts.key: {workers[rank]}})
                    ts.loose_restrictions = True
                    self._placed.add(ts.key)

    def moved(self, key: Key, state: str) -> None:
        """Forget the worker of a block that is computed, or not wanted any more."""
        if key in self._placed and state in ("memory", "erred", "forgotten"):
            self._free(key)

    def add_worker(self, worker: str) -> None:
        """Let a new worker compute the blocks of lost ones.

        If no worker is left, Dask waits for the preferred one to come back.
        """
        self._keep_no_messages(worker)
        for ts in list(self.scheduler.unrunnable):
            if ts.key in self._placed:
                self._free(ts.key)

    def _keep_no_messages(self, worker: str) -> None:
        # Dask would keep the last 1,000 messages to each worker, with the data in them
        self.scheduler.stream_comms[worker].recent_message_log = deque(maxlen=0)

    def _free(self, key: Key) -> None:
        self._placed.discard(key)
        if (ts := self.scheduler.tasks.get(key)) is not None:
            self.scheduler.set_restrictions({key: None})
            ts.loose_restrictions = False


def _chain(ts: TaskState) -> list[TaskState]:
    """Return the tasks of a new block, from the last to the first.

    None if they read other data, if others read what is not requested, or if users chose workers.
    """
    chain = [ts]
    while True:
        last = chain[-1]
        if last.state != "released" or (last is not ts and len(last.dependents) > 1):
            return []
        if last.worker_restrictions or last.host_restrictions or last.resource_restrictions:
            return []
        if not last.dependencies:
            return chain
        if len(last.dependencies) > 1:
            return []
        chain += last.dependencies
