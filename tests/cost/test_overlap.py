"""The predicted benefit of overlap, against a simulation part by part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.cost import Overlap, overlap_benefit

seconds = st.floats(0, 1e3)


def simulated(compute: float, transfer: float, chunks: int) -> float:
    """Return the end of the last part; one part is in transit, and one computed, at a time."""
    arrived = computed = 0.0
    for _ in range(chunks):
        arrived += transfer / chunks
        computed = max(arrived, computed) + compute / chunks
    return computed


@given(seconds, seconds, st.integers(1, 40))
def test_as_simulated_part_by_part(compute: float, transfer: float, chunks: int) -> None:
    found = overlap_benefit(compute, transfer, chunks)
    assert found.sequential_s == compute + transfer
    assert found.overlapped_s == pytest.approx(simulated(compute, transfer, chunks), abs=1e-9)
    assert found.saved_s >= 0
    assert found.speedup >= 1
    assert found.saved_s <= min(compute, transfer) * (1 + 1e-9) + 1e-9


def test_one_chunk_saves_nothing() -> None:
    assert overlap_benefit(8, 4, 1) == Overlap(12, 12)


def test_no_time_at_all() -> None:
    nothing = overlap_benefit(0, 0, 3)
    assert (nothing.saved_s, nothing.speedup) == (0, 1)
    assert str(nothing) == (
        "0 s one after the other, 0 s with overlap: 0 s saved, 1.00 times as fast"
    )
