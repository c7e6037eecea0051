"""One request, planned and computed."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

from dask_dgpu.batches.again import twice
from dask_dgpu.batches.call import Call
from dask_dgpu.batches.passes import execute_passes, in_passes
from dask_dgpu.batches.plan import Plan
from dask_dgpu.batches.planning import plan_passes
from dask_dgpu.batches.request import Request
from dask_dgpu.batches.shared import Shared
from dask_dgpu.batches.whole import Whole
from dask_dgpu.batches.windows.client import LostError
from dask_dgpu.errors import DgpuError


def compute(request: Request, room: float, out: Any, shared: Shared, *, progress: bool) -> Any:
    """Plan a request within ``room`` bytes of each device, and compute it."""
    call = Call.planned(request)
    if call is None:
        result = _compute_whole(_sent(request, room), out, progress)
    else:
        calls = in_passes(call, room)
        found = plan_passes(call.title, calls, room)
        _check_fits(found)
        result = call.target(out, call.shape, call.dtype)
        written = call.writer(result) if out is not None else result
        execute_passes(calls, found, written, shared, progress=progress, new=out is None)
    return result[()] if out is None and not result.shape else result


def _sent(request: Request, room: float) -> Whole:
    """Return a function's graph with its operands sent, once more if a worker is lost meanwhile."""
    try:
        return Whole.planned(request, room)
    except LostError:
        pass
    gc.collect()  # frames of the error hold operands
    return Whole.planned(request, room)


def _compute_whole(whole: Whole, out: Any, progress: bool) -> Any:
    """Compute a function as one graph, a second time in smaller blocks if memory did not last."""
    _check_fits(whole.plan)
    result = whole.result
    target = whole.target(out, result.shape, result.dtype) if whole.is_lazy else out

    def smaller(is_lost: bool) -> Any:
        found = whole.halved()
        if not is_lost and found.chunks == whole.chunks:
            found.drop()
            return None
        return found.plan.peak_bytes, partial(found.compute, target, progress=progress)

    return twice(whole.plan, partial(whole.compute, target, progress=progress), smaller)


def _check_fits(plan: Plan) -> None:
    if not plan.feasible:
        raise DgpuError(f"{plan.title} does not fit: {plan.advice}")
