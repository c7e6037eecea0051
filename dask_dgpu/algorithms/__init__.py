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
from typing import Any

from graph_opt.model.layout import Index

Array = Any
Blocks = Mapping[Index, Array]
Progress = Callable[[int, int], None]


def no_progress(done: int, steps: int) -> None:
    """Ignore progress."""
