"""What gangs took when they last ran, as their scheduler has recorded it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dask_dgpu.runtime.observer import Step
from dask_dgpu.runtime.tasks import PLUGIN
from graph_opt.dask_graph.emit import gang_key
from graph_opt.pieces.region import Region

if TYPE_CHECKING:
    from distributed import Client
    from distributed.scheduler import Scheduler


def last_run(client: Client, region: Region) -> tuple[Step, ...]:
    """Return the steps of the last run of a region, none if it has not run lately."""
    name, _ = gang_key(region)
    found: tuple[Step, ...] = client.run_on_scheduler(_last, gang=name)
    return found


def _last(gang: str, dask_scheduler: Scheduler) -> tuple[Step, ...]:
    plugin: Any = dask_scheduler.plugins[PLUGIN]
    found: tuple[Step, ...] = plugin.records.last(gang)
    return found
