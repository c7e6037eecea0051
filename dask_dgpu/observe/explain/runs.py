"""The measured steps of the last runs of gangs."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from dask.utils import format_bytes

from dask_dgpu.algorithms.summa.wire import Sent
from dask_dgpu.environment.facts import current_client
from dask_dgpu.runtime.tasks import PLUGIN
from graph_opt.model.layout import counted
from graph_opt.model.piece import Region

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

    from dask_dgpu.runtime.execute import Span


def last_runs(regions: Iterable[Region]) -> tuple[tuple[Span, ...], ...]:
    """Return the steps of the last run of each region, none if there was no run lately."""
    return tuple(_ask("last", [region.wanted for region in regions]))


def runs_of(names: Collection[str]) -> list[list[tuple[str, list[Span]]]]:
    """Return the last runs that made arrays with these names: users' words, each with its steps."""
    records: list[Any] = _ask("made", [sorted(names)])[0]
    return records


def _ask(method: str, arguments: list[Any]) -> list[Any]:
    """Return what the records of the scheduler have for each argument."""
    client = current_client()
    if client is None:
        raise ValueError("expected measured to be False without a client, got True")
    answers: list[Any] = client.run_on_scheduler(_records, method=method, arguments=arguments)
    return answers


def _records(method: str, arguments: list[Any], dask_scheduler: Scheduler) -> list[Any]:
    plugin: Any = dask_scheduler.plugins[PLUGIN]
    return [*map(getattr(plugin.records, method), arguments)]


def sent_of(step: Span) -> Sent | None:
    """Return what a product with another form of messages has sent, None for other steps."""
    sent = None if step.detail is None else pickle.loads(step.detail)
    return sent if isinstance(sent, Sent) else None


def notes(step: Span) -> str:
    """Return what a product with another form of messages has sent, in words."""
    sent = sent_of(step)
    if sent is None:
        return ""
    text = f"{format_bytes(sent.nbytes)} sent for {format_bytes(sent.exact_bytes)}"
    text += f", {counted(sent.empty, 'empty part')} not sent" if sent.empty else ""
    text += f", {counted(sent.skipped, 'product')} with zeros skipped" if sent.skipped else ""
    text += f", {counted(sent.lost, 'element')} too small" if sent.lost else ""
    return text
