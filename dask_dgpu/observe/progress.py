"""Progress of computations, including the steps of gangs within one task."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from dask.utils import format_time

from dask_dgpu.cost.console import counting_bars
from dask_dgpu.cost.table import BLUE, Cell, Rows
from dask_dgpu.errors import DgpuError
from dask_dgpu.kinds import of_either_kind
from dask_dgpu.observe.under_way import Bar, awaited, has_plugin, reached
from graph_opt.model.layout import counted

if TYPE_CHECKING:
    from distributed import Client, Future
    from rich.progress import TaskID

INTERVAL = 0.2
"""Seconds between two updates."""


@of_either_kind
def progress(*futures: Any) -> None:
    """Show the progress of computations until they end.

    One bar counts tasks of Dask. Each gang has its own bar, which counts the steps of its program;
    to the scheduler a gang is one task. Each loop, such as :func:`while_loop`, has one that counts
    its iterations. At the end a line says how much was done in which time.

    Parameters
    ----------
    *futures : distributed.Future or Dask collection
        Futures, persisted collections, or results of :func:`jit` and loops.

    Raises
    ------
    ValueError
        If ``futures`` contain no future, or futures of several clients.
    DgpuError
        If dask_dgpu is not enabled on the cluster.

    Notes
    -----
    In a terminal it returns at the end; interrupting stops only the display, and the computation
    continues. In a notebook it returns at once, and draws below the cell while other cells run. A
    failed future counts as finished; its result raises the error.

    Examples
    --------
    >>> y = da.fft.ifft2(da.fft.fft2(x) * g).real.persist()  # doctest: +SKIP
    >>> dgpu.progress(y)  # doctest: +SKIP
    tasks           ━━━━━━━━━━━━━━━━━━━━━━━━ 16/16 0:00:01
    fft2-5c2f17ab   ━━━━━━━━━━━━━━━━━━━━━━━━   5/5 0:00:01
    16 tasks, 1 gang of 5 steps in 1.21 s
    """
    from distributed.utils import is_kernel

    calls = [future for future in futures if hasattr(future, "iterations")]
    others = [future for future in futures if not hasattr(future, "iterations")]
    looks = _looks_at_calls(calls) if calls else iter(())
    if others or not calls:
        looks = chain(looks, _looks(*_client_of(others)))
    if is_kernel():
        from IPython.display import HTML, display

        facts = looks, display(HTML(""), display_id=True)
        threading.Thread(target=_draw_below, args=facts, name="progress", daemon=True).start()
        return
    drawn: dict[tuple[int, str], TaskID] = {}
    ends: list[str] = []
    with counting_bars() as shown:
        for look in looks:
            for number, name, done, total in look.bars:
                if (number, name) not in drawn:
                    drawn[number, name] = shown.add_task(name, total=total)
                shown.update(drawn[number, name], completed=done, total=total)
            ends += filter(None, [look.summary])
    for end in ends:
        shown.console.print(end, markup=False, highlight=False)


class _Look(NamedTuple):
    """Bars, that of tasks with the number -1, and at the end what was done in which time."""

    bars: list[Bar]
    summary: str = ""


def _client_of(futures: Iterable[Any]) -> tuple[Client, list[Future[Any]]]:
    from distributed import futures_of

    from dask_dgpu.runtime.tasks import PLUGIN

    needed = futures_of(list(futures))
    clients = {id(future.client): future.client for future in needed}
    if len(clients) != 1:
        got = "futures of several clients" if clients else "no future"
        raise ValueError(f"expected futures of one client, got {got}")
    (client,) = clients.values()
    if not client.run_on_scheduler(has_plugin, name=PLUGIN):
        raise DgpuError("dask_dgpu is not enabled on this cluster; call dask_dgpu.enable(client)")
    return client, needed


def _looks_at_calls(calls: Sequence[Any]) -> Iterator[_Look]:
    """Yield what to draw until all calls have ended that made these arrays."""
    begin, names = time.perf_counter(), dict[int, str]()
    while True:
        reached = [call.iterations() for call in calls]
        for i, (_, most) in enumerate(reached):
            names.setdefault(i, "loop" if most > 1 else "call")
        bars = [Bar(i, names[i], *each) for i, each in enumerate(reached)]
        if all(bar.done == bar.total for bar in bars):
            break
        yield _Look(bars)
        time.sleep(INTERVAL)
    total = counted(sum(bar.total for bar in bars), "iteration")
    seconds = format_time(time.perf_counter() - begin)
    yield _Look(bars, f"{counted(len(bars), 'call')} of {total} in {seconds}")


def _looks(client: Client, waited_for: Sequence[Future[Any]]) -> Iterator[_Look]:
    """Yield what to draw until all futures have ended."""
    begin = time.perf_counter()
    keys = [future.key for future in waited_for]
    tasks: list[Any] = []
    gangs: list[Any] = []
    known: dict[int, Bar] = {}
    while True:
        pending = any(future.status == "pending" for future in waited_for)
        if len(tasks) < len(keys):  # the scheduler may not have read the graph yet
            tasks, gangs = client.run_on_scheduler(awaited, keys=keys)
        done, running = len(tasks), list[Bar]()
        if pending:
            done, running = client.run_on_scheduler(reached, tasks=tasks, gangs=gangs)
        known = {number: bar._replace(done=bar.total) for number, bar in known.items()}
        known |= {bar.number: bar for bar in running}
        bars = [Bar(-1, "tasks", done, max(len(tasks), len(keys))), *known.values()]
        if not pending:
            break
        yield _Look(bars)
        time.sleep(INTERVAL)
    failed = sum(future.status == "error" for future in waited_for)
    seconds = time.perf_counter() - begin
    yield _Look(bars, _summary(len(tasks), list(known.values()), failed, seconds))


def _summary(tasks: int, gangs: Sequence[Bar], failed: int, seconds: float) -> str:
    """Return the line that stays."""
    parts = [counted(tasks, "task")]
    if gangs:
        total = counted(sum(bar.total for bar in gangs), "step")
        parts.append(f"{counted(len(gangs), 'gang')} of {total}")
    if failed:
        parts.append(f"{failed} failed")
    return f"{', '.join(parts)} in {format_time(seconds)}"


def _draw_below(looks: Iterator[_Look], place: Any) -> None:
    """Draw below a cell of a notebook, in place; a client that closes ends the drawing."""
    from IPython.display import HTML

    html, end, rows = "", "", dict[tuple[int, str], Any]()
    try:
        for bars, summary in looks:
            for number, name, done, total in bars:
                bar = Cell(bar={BLUE: done / max(1, total)})
                rows[number, name] = (name, bar, f"{done}/{total}")
            end += f"<div>{summary}</div>" if summary else ""
            html = Rows("", (), list(rows.values()), name="dgpu-progress").html()
            place.update(HTML(html + end))
    except Exception as error:
        place.update(HTML(f"{html}<div>the display ends: {escape(str(error))}</div>"))
