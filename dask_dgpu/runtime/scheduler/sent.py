"""The programs that members have: those are not sent again.

A worker keeps the programs of its last runs within a limit. The scheduler knows which ones it has
sent, and forgets them in the same order. A worker that lacks one all the same asks for it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from dask_dgpu.runtime.scheduler.messages import send

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

    from dask_dgpu.runtime.scheduler.run import Run

Key = Any


class Sent:
    """The digests of programs by worker, in the order of their last use, and their bytes."""

    def __init__(self, scheduler: Scheduler, runs: dict[Key, Run]) -> None:
        self.scheduler, self.runs = scheduler, runs
        self._known: dict[str, OrderedDict[bytes, int]] = {}

    def new(self, worker: str, run: Run) -> dict[str, Any]:
        """Return the program of a run for a message to a member; nothing if it has it."""
        package, known = run.package, self._known.setdefault(worker, OrderedDict())
        found = package.digest in known
        known[package.digest] = package.nbytes
        known.move_to_end(package.digest)
        nbytes = sum(known.values())
        while nbytes > run.program.limits.kept_programs:
            nbytes -= known.popitem(last=False)[1]
        return {} if found else {"text": package.text, "plans": package.plans}

    def lacks(self, key: Key, run_id: int, worker: str) -> None:
        """Send the program of a run to a member that has none; it waits for it, or for the end."""
        run = self.runs.get(key)
        if run is not None and run.run_id == run_id:
            send(self.scheduler, [worker], run.package_message())

    def remove_worker(self, worker: str) -> None:
        """Forget a lost worker."""
        self._known.pop(worker, None)
