"""The programs that members have: those are not sent again.

A worker keeps the programs of its last runs, with some plans of each, within a limit. The scheduler
knows what it has sent, and forgets it in the same order. A worker that lacks something all the same
asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dask_dgpu.runtime.package import Ledger
from dask_dgpu.runtime.scheduler.messages import send

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

    from dask_dgpu.runtime.scheduler.run import Run

Key = Any


class Sent:
    """What each worker has."""

    def __init__(self, scheduler: Scheduler, runs: dict[Key, Run]) -> None:
        self.scheduler, self.runs = scheduler, runs
        self._known: dict[str, Ledger] = {}

    def new(self, worker: str, run: Run) -> dict[str, Any]:
        """Return what a member lacks of the program of a run, for a message to it."""
        package, known = run.package, self._known.setdefault(worker, Ledger())
        text = b"" if package.program in known else package.text
        plans = b"" if package.digest in known.plans(package.program) else package.plans
        known.use(package.program, package.digest, len(package.text) + len(package.plans))
        known.shrink(run.program.limits.kept_programs)
        return {"text": text, "plans": plans}

    def lacks(self, key: Key, run_id: int, worker: str) -> None:
        """Send the program of a run to a member that has none; it waits for it, or for the end."""
        run = self.runs.get(key)
        if run is not None and run.run_id == run_id:
            send(self.scheduler, [worker], run.package_message())

    def remove_worker(self, worker: str) -> None:
        """Forget a lost worker."""
        self._known.pop(worker, None)
