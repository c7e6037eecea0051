"""Distributed algorithms on blocks: for each one a plan, its cost and a rank program.

A rank program ``*_rank(plan, comm, device, blocks, ..., progress)`` computes one rank's part:

=========  =====================================================================
plan       the plan, the same on every rank
comm       joins the ranks of the plan
device     the device of this rank's arrays
blocks     the rank's blocks by index, of any strides; they stay unchanged
progress   called with the number of steps done and of all steps; raises to cancel
=========  =====================================================================

It returns the rank's blocks of the result by index: unless it says otherwise C-contiguous, in
memory of their own. It waits for earlier work on the compute lane, and both lanes wait for the
result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

from graph_opt.model.layout import Index

P = TypeVar("P")
R = TypeVar("R")
Array = Any
Blocks = Mapping[Index, Array]
Progress = Callable[[int, int], None]


def no_progress(done: int, steps: int) -> None:
    """Ignore progress."""


def once_per_rank(function: Callable[[P, int], R]) -> Callable[[P, int], R]:
    """Let the plan, which is ``Bare``, keep the result of ``function(plan, rank)``."""

    @wraps(function)
    def cached(plan: P, rank: int) -> R:
        known: dict[int, R] = vars(plan).setdefault(f"{function.__name__} by rank", {})
        if rank not in known:
            known[rank] = function(plan, rank)
        return known[rank]

    return cached
