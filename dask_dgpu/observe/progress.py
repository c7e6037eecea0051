"""Progress of computations, including the steps of gangs within one task."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from dask_dgpu.errors import DgpuError
from graph_opt.dask_graph.emit import is_gang

if TYPE_CHECKING:
    from distributed import Client, Future
    from distributed.scheduler import Scheduler
    from rich.progress import Progress, TaskID

    from dask_dgpu.runtime.scheduler.run import Run

Key = Any

INTERVAL = 0.2
"""Seconds between two updates."""
ANSWER_SECONDS = 2.0
"""Seconds that a worker has to report its step."""


def progress(*futures: Any) -> None:
    """Show the progress of computations until they end.

    One bar counts the finished blocks. Each running gang has its own bar, which counts the
    steps of its program; to the scheduler a gang is one task.

    Parameters
    ----------
    *futures : distributed.Future or Dask collection
        Futures, or persisted collections.

    Raises
    ------
    ValueError
        If ``futures`` contain no future, or futures of several clients.
    DgpuError
        If dask_dgpu is not enabled on the cluster.

    Notes
    -----
    It draws in the terminal, or below a notebook's cell, and returns at the end.
    Interrupting stops only the display; the computation continues. A failed future counts
    as finished; its result raises the error.

    Examples
    --------
    >>> y = da.fft.ifft2(da.fft.fft2(x) * g).real.persist()  # doctest: +SKIP
    >>> dgpu.progress(y)  # doctest: +SKIP
    blocks          ━━━━━━━━━━━━━━━━━━━━━━━━ 16/16 0:00:01
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    client, waited_for = _client_of(futures)
    keys = [future.key for future in waited_for]
    text = TextColumn("{task.description}", markup=False)
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as bars:
        blocks = bars.add_task("blocks", total=len(keys))
        drawn: dict[int, TaskID] = {}
        gangs: list[Key] = []
        while True:
            pending = sum(future.status == "pending" for future in waited_for)
            bars.update(blocks, completed=len(keys) - pending)
            if not pending:
                break
            gangs = gangs or client.run_on_scheduler(_gangs, keys=keys)
            _draw(bars, drawn, client.run_on_scheduler(_under_way, gangs=gangs) if gangs else [])
            time.sleep(INTERVAL)
        _draw(bars, drawn, [])


def _client_of(futures: Iterable[Any]) -> tuple[Client, list[Future[Any]]]:
    from distributed import futures_of

    from dask_dgpu.runtime.tasks import PLUGIN

    found = futures_of(list(futures))
    clients = {id(future.client): future.client for future in found}
    if len(clients) != 1:
        got = "futures of several clients" if clients else "no future"
        raise ValueError(f"expected futures of one client, got {got}")
    (client,) = clients.values()
    if not client.run_on_scheduler(_has_plugin, name=PLUGIN):
        raise DgpuError("dask_dgpu is not enabled on this cluster; call dask_dgpu.enable(client)")
    return client, found


def _draw(bars: Progress, known: dict[int, TaskID], gangs: Iterable[dict[str, Any]]) -> None:
    """Update the bars of gangs; the bars of finished gangs become complete."""
    seen = set()
    for gang in gangs:
        run = gang["run_id"]
        seen.add(run)
        if run not in known:
            known[run] = bars.add_task(gang["name"], total=gang["steps"])
        bars.update(known[run], completed=gang["done"])
    for run, task in list(known.items()):
        if run not in seen:
            bars.update(task, completed=bars.tasks[bars.task_ids.index(task)].total)
            del known[run]


# on the scheduler


def _has_plugin(dask_scheduler: Scheduler, name: str) -> bool:
    return name in dask_scheduler.plugins


def _gangs(keys: Collection[Key], dask_scheduler: Scheduler) -> list[Key]:
    """Return the gangs that some keys depend on."""
    seen = set()
    stack = [dask_scheduler.tasks[key] for key in keys if key in dask_scheduler.tasks]
    while stack:
        ts = stack.pop()
        if ts not in seen:
            seen.add(ts)
            stack += ts.dependencies
    return [ts.key for ts in seen if is_gang(ts.key)]


async def _under_way(gangs: Collection[Key], dask_scheduler: Scheduler) -> list[dict[str, Any]]:
    """Return the running ones of these gangs: name, steps, and finished steps."""
    from dask_dgpu.runtime.tasks import PLUGIN

    plugin: Any = dask_scheduler.plugins[PLUGIN]
    found = [plugin.runs[key] for key in gangs if key in plugin.runs]
    runs = [run for run in found if not run.outcome.done()]
    done = await asyncio.gather(*(_steps_done(dask_scheduler, run) for run in runs))
    return [
        {"run_id": r.run_id, "name": r.program.name, "steps": len(r.program.steps), "done": n}
        for r, n in zip(runs, done, strict=True)
    ]


async def _steps_done(scheduler: Scheduler, run: Run) -> int:
    """Return the number of steps that all ranks have finished."""
    from dask_dgpu.runtime.scheduler.watch import look

    if run.epoch is None:
        return 0
    answers = await asyncio.gather(
        *(look(scheduler, run, worker, ANSWER_SECONDS) for worker in list(run.awaited))
    )
    return min((answer["steps"] for answer in answers if answer), default=0)
