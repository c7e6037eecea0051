"""The measured steps of the last runs of gangs, in words."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dask.utils import format_bytes

from dask_dgpu.algorithms.summa.wire import Sent
from dask_dgpu.environment.facts import current_client
from dask_dgpu.runtime.tasks import PLUGIN
from graph_opt.model.layout import counted
from graph_opt.model.piece import Region, Wanted

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

    from dask_dgpu.runtime.observer import Step


def last_runs(regions: Iterable[Region]) -> tuple[tuple[Step, ...], ...]:
    """Return the steps of the last run of each region, none if there was no run lately."""
    client = current_client()
    if client is None:
        raise ValueError("expected measured to be False without a client, got True")
    wanted = [region.wanted for region in regions]
    runs: list[tuple[Step, ...]] = client.run_on_scheduler(_recorded, wanted=wanted)
    return tuple(runs)


def _recorded(wanted: list[Wanted], dask_scheduler: Scheduler) -> list[tuple[Step, ...]]:
    plugin: Any = dask_scheduler.plugins[PLUGIN]
    return [plugin.records.last(each) for each in wanted]


def sent_of(step: Step) -> Sent | None:
    """Return what a product with another form of messages has sent, None for other steps."""
    found = None if step.detail is None else pickle.loads(step.detail)
    return found if isinstance(found, Sent) else None


def transfers(step: Step) -> str:
    """Return the measured times and bytes of a step's transfers, as far as they are known."""
    text = ""
    if step.hidden is not None and step.exposed is not None and step.hidden + step.exposed:
        text = f"; transfers {step.hidden:.3g} s hidden, {step.exposed:.3g} s exposed"
    sent = sent_of(step)
    if sent is not None:
        text += f"; {format_bytes(sent.nbytes)} sent for {format_bytes(sent.exact_bytes)}"
        text += f", {counted(sent.empty, 'empty part')} not sent" if sent.empty else ""
        text += f", {counted(sent.skipped, 'product')} with zeros skipped" if sent.skipped else ""
        text += f", {counted(sent.lost, 'element')} too small" if sent.lost else ""
    return text
