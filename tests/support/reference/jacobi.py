"""Jacobi's iteration on whole arrays."""

from __future__ import annotations

from math import inf, sqrt
from typing import Any

import numpy as np

from dask_dgpu.algorithms.stencil.jacobi import Outcome, scale_of, verdict
from dask_dgpu.algorithms.stencil.plan import JacobiTask
from tests.support.reference.stencil import one_sweep

Array = Any


def jacobi_reference(task: JacobiTask, u0: Array, rhs: Array) -> tuple[Array, Outcome]:
    """Iterate on whole arrays in NumPy, with the residual after each sweep."""

    def swept(u: Array) -> Array:
        return one_sweep(u, task.taps, task.boundary) - task.damping * rhs

    def change(before: Array, after: Array) -> float:
        return float((np.abs((after - before).astype("complex128")) ** 2).sum())

    zero = np.zeros_like(u0)
    scale = scale_of(task, change(zero, swept(zero)))
    u, history = u0, []
    reason, done = None, 0
    while reason is None:
        following = swept(u)
        history.append((done, sqrt(change(u, following)) * scale))
        reason = verdict(task, done, history[-1][1], history[0][1] or inf)
        if reason is None:
            u, done = following, done + 1
    return u, Outcome(reason, tuple(history))
