"""From a call to its plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from dask.array.core import Array
from dask.core import flatten
from dask.utils import format_bytes

from dask_dgpu.batches.call import Call
from dask_dgpu.batches.notation import Lengths, choose, overlapping
from dask_dgpu.batches.passes import temporary_bytes
from dask_dgpu.batches.plan import Plan
from dask_dgpu.batches.sites import Site
from dask_dgpu.cost.table import at_least
from dask_dgpu.planner.present import enough
from graph_opt.model.cost import pipelined

BATCH_SECONDS = 5e-3
"""Cost of a batch besides its work: its graph, and its tasks."""

ROUND_SECONDS = 25e-3
"""The same on a cluster, with its round trips: operands out, tasks, and the result back."""

SMALLEST = "its smallest batch"


@dataclass(frozen=True)
class Prediction:
    """The seconds of a batch, and the bytes that the busiest rank receives in gangs."""

    seconds: float | None
    moved_bytes: int


def plan_passes(title: str, calls: Sequence[Call], room: float) -> Plan:
    """Plan calls that follow each other, as one plan."""
    plans = tuple(plan_call(call, room) for call in calls)
    most = max(plans, key=lambda plan: plan.peak_bytes)
    if len(plans) == 1:
        return most
    found = replace(
        most,
        title=title,
        lengths={},
        pass_plans=plans,
        temporary_bytes=temporary_bytes(calls),
    )
    if not all(plan.feasible for plan in plans):
        return replace(found, feasible=False, batches=0, host_bytes=0, rank_bytes=0, seconds=None)
    seconds = [plan.seconds for plan in plans if plan.seconds is not None]
    return replace(
        found,
        batches=sum(plan.batches for plan in plans),
        host_bytes=sum(plan.host_bytes for plan in plans),
        rank_bytes=sum(plan.rank_bytes for plan in plans),
        seconds=sum(seconds) if len(seconds) == len(plans) else None,
    )


def plan_call(call: Call, room: float) -> Plan:
    """Plan a call within ``room`` bytes of each device."""
    site, notation = call.site, call.notation
    rate, overhead = transfer_rate(site), batch_seconds(site)

    def seconds(lengths: Lengths) -> float:
        return call.traffic(lengths) / rate + notation.batches(lengths) * overhead

    lengths = choose(notation, call.peak, seconds, room)
    fits = lengths is not None
    if lengths is None:
        lengths = call.smallest
    elif site.overlaps and notation.batches(lengths) == 1:
        lengths = overlapping(notation, call.peak, call.traffic, room)
    cuts = call.names(lengths)
    output = [label for label in notation.labels if notation.sizes[label] > 1]
    whole = notation.sizes[output[0]] if output else 1
    found = replace(
        Plan.of(call.title, site.ranks, room, call.parts(lengths)),
        rows=next(iter(cuts.values()), whole),
        cuts=cuts,
        lengths=lengths,
    )
    if not fits:
        return replace(found, advice=advice(site, SMALLEST, found.peak_bytes, room))
    batches, predicted = notation.batches(lengths), predict(site, call.graph(lengths))
    traffic, between = call.traffic(lengths), call.between_batches(lengths)
    return replace(
        found,
        feasible=True,
        batches=batches,
        host_bytes=traffic,
        rank_bytes=predicted.moved_bytes * batches,
        seconds=seconds_of(site, predicted.seconds, traffic, between, batches),
    )


def predict(site: Site, result: Array) -> Prediction:
    """Predict a graph as the optimizer will run it; unknown after an error."""
    optimizer, keys = site.optimizer, list(flatten(result.__dask_keys__()))
    if not site.is_enabled:  # Dask computes everything: nothing has to fit
        settings = replace(optimizer.settings, memory_limit=None, memory_cap=None)
        facts = replace(optimizer.facts, device_memory=None)
        optimizer = replace(optimizer, settings=settings, facts=facts)
    try:
        rewriting = optimizer.rewrite(result.dask, keys)
        ours, plain = optimizer.totals(rewriting)
    except Exception:
        if optimizer.settings.on_error == "raise":
            raise
        return Prediction(None, 0)
    if not site.is_enabled:
        return Prediction(plain.seconds, 0)
    predictions = [each for _, each in rewriting.regions]
    # blocks through windows are on GPUs when a gang starts: their copies are the batch's transfer
    copies = sum(each.host_seconds for each in predictions) if site.overlaps else 0.0
    return Prediction(ours.seconds - copies, sum(each.moved_bytes for each in predictions))


def advice(site: Site, what: str, least: int, room: float) -> str:
    """Return what to change for a call of which ``what`` needs so many bytes.

    Numbers are rounded up, so that they are enough, and include what others hold.
    """
    free = site.room
    share = room / free if 0 < room < free else 1.0  # of one call of several at a time
    limit, cap = enough(ceil(least / share), site.others, site.facts, site.optimizer.settings)
    given = [
        f"memory_{name} of at least {at_least(nbytes)}"
        if site.is_enabled
        else f"dgpu.memory.{name} to at least {at_least(nbytes)}"
        for name, nbytes in (("cap", cap), ("limit", limit))
        if nbytes is not None
    ]
    changes = []
    if given:
        how = "call dgpu.enable with" if site.is_enabled else "set"
        changes.append(f"{how} {' and '.join(given)}")
    if not site.in_process:
        changes.append("use more workers")
    needs = f"{what} needs {format_bytes(least)} on each device and {format_bytes(int(room))}"
    return f"{needs} may be used; {' or '.join(changes)}"


def seconds_of(
    site: Site, batch: float | None, host_bytes: int, between: int, batches: int
) -> float | None:
    """Predict all batches: each is computed while the next is transferred, but for some bytes.

    So the longer of the two counts. If blocks go through Dask to GPUs, a batch includes its copies
    over PCIe, which nothing hides.
    """
    if batch is None:
        return None
    count, rate = max(1, batches), transfer_rate(site)
    compute, transfer = (batch + batch_seconds(site)) * count, (host_bytes - between) / rate
    return pipelined(compute, transfer, transfer / count, count) + between / rate


def batch_seconds(site: Site) -> float:
    """Return the cost of a batch besides its work."""
    return BATCH_SECONDS if site.in_process else ROUND_SECONDS


def transfer_rate(site: Site) -> float:
    """Return the bytes per second between host arrays and devices: of memory, PCIe, or Dask."""
    machine = site.optimizer.facts.machine
    if site.in_process:
        return machine.memory_bandwidth
    if site.overlaps and machine.link_bandwidth is not None:  # blocks go through windows
        return machine.link_bandwidth * site.ranks
    return machine.dask_rate
