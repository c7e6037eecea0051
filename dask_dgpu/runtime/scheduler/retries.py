"""Failed tasks that a client retries: what Dask leaves behind, and which ones the client knows."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState

Key = Any


def forgive(ts: TaskState) -> None:
    """Forget which task a waiting one blames.

    When a task fails, Dask lets all its dependents blame it, and then releases those that nothing
    needs any more. A retry only clears this for tasks that have failed. Dask does not run a
    released task that blames another one, so it would never run again after a loss.
    """
    ts.exception_blame = None


def retry(scheduler: Scheduler, keys: Collection[Key], client: str | None = None) -> list[Key]:
    """Retry failed tasks; return the futures of the client that are pending now.

    Dask's own answer has the failed tasks within the graph too. They are no futures of the client,
    and its :meth:`Client.retry` raises a ``KeyError``. Further futures are those with the same
    failed task.
    """
    known = scheduler.clients[client].wants_what if client in scheduler.clients else set()
    failed = {ts for ts in known if ts.state == "erred"}
    scheduler.stimulus_retry(_causes(scheduler, keys), client)
    return [ts.key for ts in known if ts.key in keys or (ts in failed and ts.state != "erred")]


def _causes(scheduler: Scheduler, keys: Collection[Key]) -> list[Key]:
    """Return the tasks that have failed first, of those on which these tasks depend.

    Dask would look for them along each path of the graph: exponentially many in a loop of gangs.
    """
    found = []
    left, seen = list(keys), set(keys)
    while left:
        key = left.pop()
        erred = {ts.key for ts in scheduler.tasks[key].dependencies if ts.state == "erred"}
        if not erred:
            found.append(key)
        left += erred - seen
        seen |= erred
    return found
