"""From a call to its plan; transforms go in passes, if all axes do not fit together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, prod
from typing import Any

import numpy as np
from dask.array.core import Array
from dask.core import flatten
from dask.utils import format_bytes

from dask_dgpu.batches import rules
from dask_dgpu.batches.call import BatchCall, Request
from dask_dgpu.batches.notation import Lengths, choose, overlapping
from dask_dgpu.batches.operations import resolve
from dask_dgpu.batches.plan import Plan
from dask_dgpu.batches.sites import Site
from dask_dgpu.batches.sources import Operand, Slot
from dask_dgpu.cost.table import at_least
from dask_dgpu.kernels.fft import TO_REAL
from dask_dgpu.planner.present import enough
from graph_opt.model.cost import pipelined

BATCH_SECONDS = 5e-3
"""Cost of a batch besides its work: its graph, and its tasks."""

ROUND_SECONDS = 25e-3
"""The same on a cluster, with its round trips: operands out, tasks, and the result back."""

Stage = tuple[int, int]
"""An axis and the length of its transform, -1 for that of the axis."""

COMPLEX = {"rfft": "fft", "irfft": "ifft"}
"""Transforms from and to real numbers, and those along their other axes."""


def plan_passes(
    title: str, calls: Sequence[BatchCall], room: float, *, timed: bool = False
) -> Plan:
    """Plan calls that follow each other, as one plan; see :func:`plan_call`."""
    plans = tuple(plan_call(call, room, timed=timed) for call in calls)
    most = max(plans, key=lambda plan: plan.peak_bytes)
    if len(plans) == 1:
        return most
    between = temporary_bytes(calls)
    whole = replace(most, title=title, lengths={}, pass_plans=plans, temporary_bytes=between)
    if not whole.feasible:
        return whole
    seconds = [plan.seconds for plan in plans if plan.seconds is not None]
    return replace(
        whole,
        batches=sum(plan.batches for plan in plans),
        host_bytes=sum(plan.host_bytes for plan in plans),
        rank_bytes=sum(plan.rank_bytes for plan in plans),
        seconds=sum(seconds) if len(seconds) == len(plans) else None,
    )


def plan_call(call: BatchCall, room: float, *, timed: bool = False) -> Plan:
    """Plan a call within ``room`` bytes of each device.

    Its seconds and the bytes between ranks take a few milliseconds, if they are wanted.
    """
    site, notation = call.site, call.notation
    rate, overhead = transfer_rate(site), batch_seconds(site)

    def cost(lengths: Lengths) -> float:
        return call.traffic(lengths) / rate + notation.batches(lengths) * overhead

    lengths = choose(notation, call.peak, cost, room)
    if site.overlaps and notation.batches(lengths) == 1:
        lengths = overlapping(notation, call.peak, call.traffic, room)
    cuts = call.names(lengths)
    output = [label for label in notation.labels if notation.sizes[label] > 1]
    whole = notation.sizes[output[0]] if output else 1
    plan = replace(
        Plan.of(call.title, site.ranks, room, call.parts(lengths)),
        rows=next(iter(cuts.values()), whole),
        cuts=cuts,
        lengths=lengths,
    )
    if plan.peak_bytes > room:
        return replace(plan, advice=advice(site, "its smallest batch", plan.peak_bytes, room))
    batches, traffic = notation.batches(lengths), call.traffic(lengths)
    plan = replace(plan, feasible=True, batches=batches, host_bytes=traffic)
    if not timed:
        return plan
    batch, moved = predict(site, call.graph(lengths))
    between = call.reads(call.staying(lengths), lengths)
    seconds = seconds_of(site, batch, traffic, between, batches)
    return replace(plan, rank_bytes=moved * batches, seconds=seconds)


def predict(site: Site, result: Array) -> tuple[float | None, int]:
    """Predict a graph: its seconds, and the bytes that the busiest rank receives in gangs.

    After an error of the optimizer nothing is known.
    """
    optimizer, keys = site.optimizer, list(flatten(result.__dask_keys__()))
    try:
        rewriting = optimizer.rewrite(result.dask, keys)
        ours, plain = optimizer.totals(rewriting)
    except Exception:
        if optimizer.settings.on_error == "raise":
            raise
        return None, 0
    if not site.is_enabled:
        return plain.seconds, 0
    predictions = [each for _, each in rewriting.regions]
    # blocks through windows are on GPUs when a gang starts: their copies are the batch's transfer
    copies = sum(prediction.host_seconds for prediction in predictions) if site.overlaps else 0.0
    return ours.seconds - copies, sum(prediction.moved_bytes for prediction in predictions)


def advice(site: Site, what: str, least: int, room: float) -> str:
    """Return what to change for a call of which ``what`` needs so many bytes.

    Numbers are rounded up, so that they are enough, and include what others hold.
    """
    free, optimizer = site.room, site.optimizer
    share = room / free if 0 < room < free else 1.0  # of one call of several at a time
    limit, cap = enough(ceil(least / share), site.others, optimizer.facts, optimizer.settings)
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


def in_passes(call: BatchCall, room: float) -> tuple[BatchCall, ...]:
    """Return calls that follow each other, each along as many axes as fit in ``room`` bytes.

    It is the call itself if that fits, or cannot be split. The operands of later calls have no
    source yet.
    """
    stages = () if _fits(call, room) else _stages(call)
    if len(stages) < 2:
        return (call,)
    calls: list[BatchCall] = []
    operand = call.operands[0]
    while stages:
        together = len(stages) if calls else len(stages) - 1
        each = _along(call, operand, stages[:together])
        while together > 1 and not _fits(each, room):
            together -= 1
            each = _along(call, operand, stages[:together])
        calls.append(each)
        operand = Operand(f"the result of pass {len(calls)}", None, each.shape, each.dtype)
        stages = stages[together:]
    return tuple(calls)


def _fits(call: BatchCall, room: float) -> bool:
    return call.peak(call.notation.smallest) <= room


def _stages(call: BatchCall) -> tuple[Stage, ...]:
    """Return the transforms along single axes in NumPy's order, none for other operations.

    Real numbers come first in transforms from them, and last in transforms to them.
    """
    if call.operation.rule is not rules.transform:
        return ()
    values, shape = call.values, call.operands[0].shape
    axes = rules.transformed_axes(values, len(shape))
    given = values.get("s")
    given = [None] * len(axes) if given is None else list(given)
    lengths = [-1 if n is None else int(n) for n in given]
    is_to_real = _kind(call) in TO_REAL
    if is_to_real and given[-1] is None:
        lengths[-1] = 2 * (shape[axes[-1]] - 1)
    stages = tuple(zip(axes, lengths, strict=True))[::-1]
    return stages[1:] + stages[:1] if is_to_real else stages


def _kind(call: BatchCall) -> str:
    return call.operation.name.rstrip("2n")


def _along(call: BatchCall, operand: Operand, stages: Sequence[Stage]) -> BatchCall:
    """Return the transform of an operand along some of the axes of a call."""
    values, kind = call.values, _kind(call)
    (*_, real) = rules.transformed_axes(values, len(operand.shape))
    if real not in [axis for axis, _ in stages]:
        kind = COMPLEX.get(kind, kind)
    ordered = stages if kind in TO_REAL else stages[::-1]  # the axis of real numbers is the last
    options: dict[str, Any] = {name: values[name] for name in ("type", "norm") if name in values}
    options |= {"axes": tuple(axis for axis, _ in ordered), "s": tuple(n for _, n in ordered)}
    transform = BatchCall.planned(
        Request(resolve(f"{kind}n"), (Slot(0),), options, (operand,), call.site)
    )
    assert transform is not None  # transforms have a rule
    return transform


def temporary_bytes(calls: Sequence[BatchCall]) -> int:
    """Return the bytes of temporary arrays, for a NumPy array as the last call's result."""
    last = calls[-1]
    temporaries = {id(call): call for call in targets(calls, last, lambda call: call)}
    del temporaries[id(last)]
    return sum(
        prod(temporary.shape) * temporary.dtype.itemsize for temporary in temporaries.values()
    )


def targets(calls: Sequence[BatchCall], out: Any, new: Callable[[BatchCall], Any]) -> list[Any]:
    """Return the array for the result of each call, ``out`` for the last one.

    The others go to ``out`` too if it is a NumPy array of their shape and dtype, or else over the
    result before them if it is temporary, or to a ``new`` array.
    """
    arrays: list[Any] = []
    for call in calls[:-1]:
        like = [array for array in (out, *arrays[-1:]) if _is_like(call, array)]
        arrays.append(like[0] if like else new(call))
    return [*arrays, out]


def _is_like(call: BatchCall, other: Any) -> bool:
    """Whether the result of a call can be read from and written to an array."""
    is_array = isinstance(other, np.ndarray | BatchCall)
    return is_array and call.shape == other.shape and call.dtype == other.dtype
