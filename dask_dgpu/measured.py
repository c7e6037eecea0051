"""What gangs took when they last ran, from the events that the scheduler keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dask_dgpu.runtime.observer import TOPIC
from graph_opt.emit import gang_key
from graph_opt.region import Region

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True)
class Step:
    """One step of a gang's last run.

    Parameters
    ----------
    name : str
        The layer that it stands for.
    seconds : float
        Of the rank that took longest.
    nbytes : int
        Bytes that all ranks have made.
    """

    name: str
    seconds: float
    nbytes: int


def last_run(client: Client, region: Region) -> tuple[Step, ...]:
    """Return the steps of the last run of a region, none if it has not run."""
    name, _ = gang_key(region)
    events = [event for _, event in client.get_events(TOPIC) if event["gang"].startswith(name)]
    if not events:
        return ()
    last = max(event["run_id"] for event in events)
    ranks = [event["steps"] for event in events if event["run_id"] == last]
    return tuple(_slowest(spans) for spans in zip(*ranks, strict=True))


def _slowest(spans: Sequence[Any]) -> Step:
    """Join what the ranks say of one step."""
    name = spans[0][0]
    return Step(
        name,
        max(stop - start for _, _, start, stop, _ in spans),
        sum(nbytes for *_, nbytes in spans),
    )
