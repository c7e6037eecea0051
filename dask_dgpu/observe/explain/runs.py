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
from graph_opt.model.piece import Region, Wanted

if TYPE_CHECKING:
    from distributed import Client
    from distributed.scheduler import Scheduler

    from dask_dgpu.runtime.recording import Step


def last_runs(regions: Iterable[Region]) -> tuple[tuple[Step, ...], ...]:
    """Return the steps of the last run of each region, none if there was no run lately."""
    wanted = [region.wanted for region in regions]
    runs: list[tuple[Step, ...]] = _client().run_on_scheduler(_recorded, wanted=wanted)
    return tuple(runs)


def runs_of(names: Collection[str]) -> list[list[tuple[str, list[Step]]]]:
    """Return the last runs that made arrays with these names: users' words, each with its steps."""
    found: list[Any] = _client().run_on_scheduler(_made, names=sorted(names))
    return found


def _client() -> Client:
    client = current_client()
    if client is None:
        raise ValueError("expected measured to be False without a client, got True")
    return client


def _recorded(wanted: list[Wanted], dask_scheduler: Scheduler) -> list[tuple[Step, ...]]:
    plugin: Any = dask_scheduler.plugins[PLUGIN]
    return [plugin.records.last(each) for each in wanted]


def _made(names: Collection[str], dask_scheduler: Scheduler) -> list[Any]:
    plugin: Any = dask_scheduler.plugins[PLUGIN]
    found: list[Any] = plugin.records.made(names)
    return found


def sent_of(step: Step) -> Sent | None:
    """Return what a product with another form of messages has sent, None for other steps."""
    found = None if step.detail is None else pickle.loads(step.detail)
    return found if isinstance(found, Sent) else None


def notes(step: Step) -> str:
    """Return what a product with another form of messages has sent, in words."""
    sent = sent_of(step)
    if sent is None:
        return ""
    text = f"{format_bytes(sent.nbytes)} sent for {format_bytes(sent.exact_bytes)}"
    text += f", {counted(sent.empty, 'empty part')} not sent" if sent.empty else ""
    text += f", {counted(sent.skipped, 'product')} with zeros skipped" if sent.skipped else ""
    text += f", {counted(sent.lost, 'element')} too small" if sent.lost else ""
    return text
