"""Reports to users about graphs that were left to Dask, in any process."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from dask_dgpu.planner.predict import NO_MEETING, ONE_PROCESS
from dask_dgpu.planner.present import is_offloaded, scheduler_here
from dask_dgpu.runtime.scheduler.states import TOPIC, announce
from dask_dgpu.runtime.tasks import ENABLE
from graph_opt.model.names import label

if TYPE_CHECKING:
    from distributed import Client
    from distributed.scheduler import Scheduler

    from dask_dgpu.planner.decisions import Rewriting

logger = logging.getLogger(__name__)

MOST_LOGGED = 2000
"""Most characters of the verdicts on a graph in the log."""

MOST_CHARACTERS = 500
"""Longest reason: an error may quote a whole array."""


def reason_of(error: Exception) -> str:
    """Return an error as a reason of limited length."""
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + " ..."


def report(error: Exception, arrays: Collection[str], scheduler_id: str | None) -> None:
    """Report that a graph was left to Dask because of an error.

    This warns, except in the scheduler's own thread for graphs, where no user sees a warning.
    There the reason is logged, kept as an event for :func:`fallbacks_of`, and sent to the
    clients, which warn. ``arrays`` are the names of the requested arrays.
    """
    reason = reason_of(error)
    message = f"dask_dgpu left a graph to Dask: {reason}"
    scheduler = scheduler_here(scheduler_id) if is_offloaded() else None
    if scheduler is None:
        warnings.warn(message, stacklevel=3)
        return
    logger.warning(message, exc_info=error)
    # the scheduler optimizes graphs outside of its event loop's thread
    scheduler.loop.add_callback(announce, scheduler, arrays, reason, message)


def report_elsewhere(scheduler: Scheduler, enabled: str | None, arrays: Collection[str]) -> None:
    """Have the clients of a scheduler that is not the ``enabled`` one warn."""
    reason = f"dask_dgpu is enabled {'without a cluster' if enabled is None else 'for another one'}"
    message = f"dask_dgpu left a graph to Dask on this cluster: {reason}; {ENABLE}"
    scheduler.loop.add_callback(announce, scheduler, arrays, reason, message)


def log_verdicts(rewriting: Rewriting[Any], arrays: Collection[str]) -> None:
    """Log at INFO which gangs a graph becomes, and why the rest of it does not."""
    gangs = [
        f"{region.label} run as {'a gang' if verdict.parts == 1 else f'{verdict.parts} gangs'}"
        for region, verdict in rewriting.regions
    ]
    reasons = {each.name: each.reason for each in rewriting.declined}
    refused = {**rewriting.left, **reasons}
    left = [f"{label(name)} is left to Dask: {reason}" for name, reason in refused.items()]
    usual = ONE_PROCESS if rewriting.own_left else NO_MEETING
    text = "; ".join([*gangs, *left]) or f"{usual}, so all of it is left to Dask"
    logger.info("graph of %s: %s", ", ".join(sorted(arrays)), text[:MOST_LOGGED])


def fallbacks_of(client: Client | None, names: Collection[str]) -> tuple[str, ...]:
    """Return why a cluster left graphs of some arrays to Dask, each reason once."""
    if client is None or client.asynchronous:
        return ()
    reasons: list[str] = client.run_on_scheduler(_reasons, names=sorted(names))
    return tuple(reasons)


def _reasons(names: Collection[str], dask_scheduler: Scheduler) -> list[str]:
    events = [event for _, event in dask_scheduler.get_events(TOPIC)]
    return list(
        dict.fromkeys(event["reason"] for event in events if set(names) & set(event["names"]))
    )
