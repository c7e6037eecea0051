"""Watching a run: no progress within the time limit ends it, with the rank to blame."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dask_dgpu.errors import GangError

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

    from dask_dgpu.runtime.run import Run

MOST_SECONDS_BETWEEN_LOOKS = 5.0

Report = dict[str, Any]


async def watch(scheduler: Scheduler, run: Run, fail: Callable[[Run, GangError], None]) -> None:
    """Look at the members of a run until it ends; call ``fail`` when it stands still.

    Progress is what the ranks report of their steps, not the time a program
    takes: a long product is no hang. Nor is a function of the user's that goes on and on;
    Dask would wait for it too. But that of one rank does not excuse another that is silent:
    a device that waits for that one may keep the function from returning.
    """
    timeout = run.program.limits.timeout
    interval = min(timeout / 4, MOST_SECONDS_BETWEEN_LOOKS)
    clock = asyncio.get_running_loop().time
    seen: dict[str, Any] = {}
    moved = clock()
    heard = dict.fromkeys(run.members, moved)
    while True:
        await asyncio.wait([run.outcome], timeout=interval)
        if run.outcome.done():
            return
        awaited = sorted(run.awaited)
        reports = await asyncio.gather(*(look(scheduler, run, w, interval) for w in awaited))
        now = {w: (r["done"], r["phase"]) for w, r in zip(awaited, reports, strict=True) if r}
        busy = any(report["calling"] for report in reports if report)
        if busy or any(now[w] != seen.get(w) for w in now) or len(now) > len(seen):
            moved = clock()
        seen = {**seen, **now}
        heard.update(dict.fromkeys(now, clock()))
        since = min([moved, *(heard[worker] for worker in awaited)])
        if clock() - since >= timeout:
            if not run.outcome.done():
                fail(run, _blame(run, awaited, now, timeout))
            return


async def look(scheduler: Scheduler, run: Run, worker: str, limit: float) -> Report | None:
    """Ask a member how far it is.

    Parameters
    ----------
    scheduler : Scheduler
        Where this runs.
    run : Run
        Of the gang.
    worker : str
        A member.
    limit : float
        Seconds it has to answer.

    Returns
    -------
    dict or None
        As :attr:`Job.report` has it; ``None`` when there is no answer.
    """
    if worker not in scheduler.workers:
        return None
    try:
        answer = await asyncio.wait_for(scheduler.rpc(worker).dgpu_report(), limit)
    except (TimeoutError, OSError):
        return None
    for report in answer["running"]:
        if (report["key"], report["run_id"]) == (run.key, run.run_id):
            return dict(report)
    return {"phase": "finished", "done": -1, "calling": False, "steps": len(run.program.steps)}


def _blame(
    run: Run, awaited: list[str], now: dict[str, tuple[int, str]], timeout: float
) -> GangError:
    """Name the member that does not answer, else the one that is furthest behind."""
    silent = [worker for worker in awaited if worker not in now]
    if silent:
        reason = f"{run.program.name}: a rank has not answered for {timeout:g} s"
        return GangError(reason, run.rank(silent[0]), silent[0], "program")
    worker = min(awaited, key=lambda worker: now[worker][0])
    reason = f"{run.program.name}: no rank has made progress for {timeout:g} s"
    return GangError(reason, run.rank(worker), worker, now[worker][1])
