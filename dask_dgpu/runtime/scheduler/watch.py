"""The watch over a run: it fails after the time limit without progress, with a rank to blame."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dask_dgpu.errors import GangError

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

    from dask_dgpu.runtime.scheduler.run import Run

LONGEST_INTERVAL = 5.0

Report = dict[str, Any]


async def watch(
    scheduler: Scheduler,
    run: Run,
    runs: Mapping[Any, Run],
    fail: Callable[[Run, GangError], None],
) -> None:
    """Poll the members of a run until it ends; call ``fail`` if it makes no progress.

    Progress means that a rank reports a new step; a program may take any time. A long function of
    a user counts as progress, because Dask would wait for it too, but it does not excuse another
    rank that does not answer: the function may wait for that rank's device. A run whose worker is
    still in an earlier one of ``runs`` is not stuck, because that run is watched itself.

    Transports wait for other ranks without a limit. So only this ends a hang: ``fail`` makes the
    members abort their communicators.
    """
    timeout = run.program.limits.timeout
    interval = min(timeout / 4, LONGEST_INTERVAL)
    clock = asyncio.get_running_loop().time
    seen: dict[str, Report] = {}
    moved = clock()
    answered = dict.fromkeys(run.members, moved)
    while True:
        await asyncio.wait([run.outcome], timeout=interval)
        if run.outcome.done():
            return
        awaited = sorted(run.awaited)
        reports = await asyncio.gather(*(look(scheduler, run, w, interval) for w in awaited))
        now = {worker: r for worker, r in zip(awaited, reports, strict=True) if r}
        watched = {(each.key, each.run_id) for each in runs.values() if not each.outcome.done()}
        if any(r["behind"] in watched or _moved(seen.get(w), r) for w, r in now.items()):
            moved = clock()
        seen |= now
        answered.update(dict.fromkeys(now, clock()))
        since = min([moved, *(answered[worker] for worker in awaited)])
        if clock() - since >= timeout:
            if not run.outcome.done():
                fail(run, _blame(run, awaited, now, timeout))
            return


async def look(scheduler: Scheduler, run: Run, worker: str, limit: float) -> Report | None:
    """Return the progress of a member, as :attr:`Job.report` has it, within ``limit`` seconds.

    ``None`` means no answer. ``calling`` and ``at_work`` describe the worker's current job, and
    ``behind`` names it if it is not this run's.
    """
    if worker not in scheduler.workers:
        return None
    try:
        answer = await asyncio.wait_for(scheduler.rpc(worker).dgpu_report(), limit)
    except Exception:  # any reason not to answer
        return None
    running = answer["running"]
    for report in running:
        if (report["key"], report["run_id"]) == (run.key, run.run_id):
            # a worker runs its jobs in the order in which they were launched
            first = running[0] if report["phase"] == "queued" else report
            at_work = (first["run_id"], first["done"], first["phase"])
            behind = (first["key"], first["run_id"]) if first is not report else None
            return {**report, "calling": first["calling"], "at_work": at_work, "behind": behind}
    return {
        "phase": "finished",
        "done": -1,
        "calling": False,
        "at_work": (run.run_id, -1, "finished"),
        "behind": None,
        "steps": len(run.program.nodes),
    }


def _moved(before: Report | None, now: Report) -> bool:
    return now["calling"] or before is None or before["at_work"] != now["at_work"]


def _blame(run: Run, awaited: list[str], now: dict[str, Report], timeout: float) -> GangError:
    """Blame a member that does not answer, otherwise the one with least progress."""
    silent = [worker for worker in awaited if worker not in now]
    if silent:
        reason = f"{run.launch.title}: a rank has not answered for {timeout:g} s"
        return GangError(reason, run.rank(silent[0]), silent[0], "program")
    worker = min(awaited, key=lambda worker: int(now[worker]["done"]))
    reason = f"{run.launch.title}: no rank has made progress for {timeout:g} s"
    return GangError(reason, run.rank(worker), worker, now[worker]["phase"])
