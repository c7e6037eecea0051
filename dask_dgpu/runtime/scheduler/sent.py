"""The programs that members have been sent: those are not sent again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zict import LRU

from dask_dgpu.runtime.scheduler.states import send

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

    from dask_dgpu.runtime.scheduler.run import Run

Key = Any

MOST_SENT = 4096
"""Number of digests of programs and plans that the scheduler remembers of each worker."""


class Sent:
    """What each worker has been sent. A worker that has dropped it asks for it."""

    def __init__(self, scheduler: Scheduler, runs: dict[Key, Run]) -> None:
        self.scheduler, self.runs = scheduler, runs
        self._known: dict[str, LRU[bytes, None]] = {}

    def new(self, worker: str, run: Run) -> dict[str, Any]:
        """Return what a member lacks of the program of a run, for a message to it."""
        package, known = run.package, self._known.setdefault(worker, LRU(MOST_SENT, {}))
        text = b"" if package.program in known else package.text
        plans = b"" if package.digest in known else package.plans
        if run.program.limits.kept_programs:
            known[package.program] = known[package.digest] = None
        return {"text": text, "plans": plans}

    def lacks(self, key: Key, run_id: int, worker: str) -> None:
        """Send the program of a run to a member that has none; it waits for it, or for the end."""
        run = self.runs.get(key)
        if run is not None and run.run_id == run_id:
            send(self.scheduler, [worker], run.package_message())

    def remove_worker(self, worker: str) -> None:
        """Forget a lost worker."""
        self._known.pop(worker, None)
