"""One call of an operation, planned and computed."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import numpy as np

from dask_dgpu.batches.again import twice
from dask_dgpu.batches.call import Call
from dask_dgpu.batches.operands import Template, check_out
from dask_dgpu.batches.operations import Operation
from dask_dgpu.batches.passes import execute_passes, in_passes
from dask_dgpu.batches.plan import Plan
from dask_dgpu.batches.planning import plan_passes
from dask_dgpu.batches.selected import selected
from dask_dgpu.batches.shared import Shared
from dask_dgpu.batches.sites import Site
from dask_dgpu.batches.whole import Whole
from dask_dgpu.batches.windows.client import LostError
from dask_dgpu.errors import DgpuError


def compute(
    operation: Operation,
    template: Template,
    site: Site,
    room: float,
    out: Any,
    shared: Shared,
    *,
    progress: bool,
) -> Any:
    """Plan a call within ``room`` bytes of each device, and compute it."""
    call = Call.of(operation, template, site)
    if call is None:
        result = _compute_whole(_sent(operation, template, site, room), out, progress)
    else:
        calls = in_passes(call, room)
        found = plan_passes(call.title, calls, room)
        _check_fits(found)
        result = _target(out, call.shape, call.dtype, operation, template)
        written = result if out is None else selected(operation, template, result)
        execute_passes(calls, found, written, shared, progress=progress, new=out is None)
    return result[()] if out is None and not result.shape else result


def _sent(operation: Operation, template: Template, site: Site, room: float) -> Whole:
    """Return a function's graph with its operands sent, once more if a worker is lost meanwhile."""
    try:
        return Whole.of(operation, template, site, room)
    except LostError:
        pass
    gc.collect()  # frames of the error hold operands
    return Whole.of(operation, template, site, room)


def _compute_whole(whole: Whole, out: Any, progress: bool) -> Any:
    """Compute a function as one graph, a second time in smaller blocks if memory did not last."""
    _check_fits(whole.plan)
    target = _target_of(whole, whole.result, out) if whole.is_lazy else out

    def smaller(is_lost: bool) -> Any:
        found = whole.halved()
        if not is_lost and found.chunks == whole.chunks:
            found.drop()
            return None
        return found.plan.peak_bytes, partial(_written, found, target, progress)

    return twice(whole.plan, partial(_written, whole, target, progress), smaller)


def _written(whole: Whole, target: Any, progress: bool) -> Any:
    """Return the array with the result, ``target`` if the shape is known."""
    try:
        if whole.is_lazy:
            whole.store(selected(whole.operation, whole.template, target), progress=progress)
            return target
        values = whole.compute(progress=progress)
    except BaseException:
        whole.drop()
        raise
    result = _target_of(whole, values, target)
    result[...] = values
    return result


def _check_fits(plan: Plan) -> None:
    if not plan.feasible:
        raise DgpuError(f"{plan.title} does not fit: {plan.advice}")


def _target(
    out: Any, shape: tuple[int, ...], dtype: Any, operation: Operation, template: Template
) -> Any:
    if out is None:
        return np.empty(shape, dtype)
    casting = partial(operation.casting, template)
    check_out(out, shape, np.dtype(dtype), template.values, casting)
    return out


def _target_of(whole: Whole, result: Any, out: Any) -> Any:
    return _target(out, result.shape, result.dtype, whole.operation, whole.template)
