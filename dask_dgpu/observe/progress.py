"""Progress of computations, including the steps of gangs within one task."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from dask.utils import format_time

from dask_dgpu.cost.console import counting_bars
from dask_dgpu.cost.table import BLUE, Cell, Rows
from dask_dgpu.errors import DgpuError
from dask_dgpu.observe.under_way import awaited, ended, has_plugin, steps
from graph_opt.model.layout import counted

if TYPE_CHECKING:
    from distributed import Client, Future
    from rich.progress import TaskID

INTERVAL = 0.2
"""Seconds between two updates."""


def progress(*futures: Any) -> None:
    """Show the progress of computations until they end.

    One bar counts tasks of Dask. Each gang has its own bar, which counts the steps of its program;
    to the scheduler a gang is one task. At the end a line says how much was done in which time.

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

    client, waited_for = _client_of(futures)
    if is_kernel():
        facts = client, waited_for, _Notebook()
        threading.Thread(target=_follow_quietly, args=facts, name="progress", daemon=True).start()
        return
    with _Terminal() as bars:
        _follow(client, waited_for, bars)


class _Bar(NamedTuple):
    """What a bar shows; that of tasks has the number -1, others that of their run."""

    number: int
    name: str
    done: int
    total: int


def _client_of(futures: Iterable[Any]) -> tuple[Client, list[Future[Any]]]:
    from distributed import futures_of

    from dask_dgpu.runtime.tasks import PLUGIN

    found = futures_of(list(futures))
    clients = {id(future.client): future.client for future in found}
    if len(clients) != 1:
        got = "futures of several clients" if clients else "no future"
        raise ValueError(f"expected futures of one client, got {got}")
    (client,) = clients.values()
    if not client.run_on_scheduler(has_plugin, name=PLUGIN):
        raise DgpuError("dask_dgpu is not enabled on this cluster; call dask_dgpu.enable(client)")
    return client, found


def _follow(
    client: Client, waited_for: Sequence[Future[Any]], shown: _Terminal | _Notebook
) -> None:
    """Draw until all futures have ended."""
    begin = time.perf_counter()
    keys = [future.key for future in waited_for]
    tasks: list[Any] = []
    gangs: list[Any] = []
    known: dict[int, _Bar] = {}
    while True:
        pending = any(future.status == "pending" for future in waited_for)
        if len(tasks) < len(keys):  # the scheduler may not have read the graph yet
            tasks, gangs = client.run_on_scheduler(awaited, keys=keys)
        running = client.run_on_scheduler(steps, gangs=gangs) if pending and gangs else []
        known = {number: bar._replace(done=bar.total) for number, bar in known.items()}
        known |= {
            each["run_id"]: _Bar(each["run_id"], each["name"], each["done"], each["steps"])
            for each in running
        }
        done = client.run_on_scheduler(ended, keys=tasks) if pending else len(tasks)
        total = max(len(tasks), len(keys))
        shown.update([_Bar(-1, "tasks", done, total), *known.values()])
        if not pending:
            break
        time.sleep(INTERVAL)
    failed = sum(future.status == "error" for future in waited_for)
    seconds = time.perf_counter() - begin
    shown.finish(_summary(len(tasks), list(known.values()), failed, seconds))


def _summary(tasks: int, gangs: Sequence[_Bar], failed: int, seconds: float) -> str:
    """Return the line that stays."""
    found = [counted(tasks, "task")]
    if gangs:
        total = counted(sum(bar.total for bar in gangs), "step")
        found.append(f"{counted(len(gangs), 'gang')} of {total}")
    if failed:
        found.append(f"{failed} failed")
    return f"{', '.join(found)} in {format_time(seconds)}"


def _follow_quietly(client: Client, waited_for: Sequence[Future[Any]], shown: _Notebook) -> None:
    """Draw in a thread; a client that closes ends the drawing."""
    try:
        _follow(client, waited_for, shown)
    except Exception as error:
        shown.finish(f"the display ends: {error}")


class _Terminal:
    """Bars of rich."""

    def __init__(self) -> None:
        self._bars = counting_bars()
        self._drawn: dict[int, TaskID] = {}
        self._line = ""

    def __enter__(self) -> _Terminal:
        self._bars.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._bars.__exit__(*error)
        if self._line:
            self._bars.console.print(self._line, markup=False, highlight=False)

    def update(self, bars: Sequence[_Bar]) -> None:
        """Draw bars."""
        for number, name, done, total in bars:
            if number not in self._drawn:
                self._drawn[number] = self._bars.add_task(name, total=total)
            self._bars.update(self._drawn[number], completed=done, total=total)

    def finish(self, line: str) -> None:
        """Print the last line below the bars, at the end."""
        self._line = line


@dataclass
class _Notebook:
    """Bars below a cell, drawn again in place."""

    html: str = ""

    def __post_init__(self) -> None:
        from IPython.display import HTML, display

        self._as_html = HTML
        self._place = display(HTML(""), display_id=True)

    def update(self, bars: Sequence[_Bar]) -> None:
        """Draw bars."""
        rows = [
            (name, Cell(bar={BLUE: done / max(1, total)}), f"{done}/{total}")
            for _, name, done, total in bars
        ]
        self._draw(Rows("", (), rows, name="dgpu-progress").html())

    def finish(self, line: str) -> None:
        """Draw the last line below the bars."""
        self._draw(f"{self.html}<div>{escape(line)}</div>")

    def _draw(self, html: str) -> None:
        self.html = html
        self._place.update(self._as_html(html))
