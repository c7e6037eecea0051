from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_opt.model.cost import HOST, Machine, dask_product_seconds, pipelined

times = st.floats(0, 1e3)


@given(times, times, st.integers(1, 64), st.floats(0, 1))
def test_a_pipeline_takes_no_less_than_either_part(
    compute: float, transfer: float, steps: int, share: float
) -> None:
    seconds = pipelined(compute, transfer, share * transfer, steps)
    assert seconds >= max(compute, transfer) * (1 - 1e-12)
    assert seconds <= (compute + transfer) * (1 + 1e-12)


def test_what_a_pipeline_hides() -> None:
    assert pipelined(8.0, 4.0, 4.0, 1) == 12
    assert pipelined(8.0, 4.0, 1.0, 4) == 9
    assert pipelined(8.0, 4.0, 0.0, 4) == 8
    assert pipelined(4.0, 8.0, 2.0, 4) == 2 + 6 + 1


@pytest.mark.parametrize("ranks", [1, 2, 7])
def test_plain_dask_pays_for_its_tasks(ranks: int) -> None:
    few = dask_product_seconds((4096,) * 3, (2, 2, 2), 8, ranks, HOST)
    many = dask_product_seconds((4096,) * 3, (64, 64, 64), 8, ranks, HOST)
    assert many > few


def test_one_rank_moves_only_partial_sums() -> None:
    no_links = Machine(flops=1e9, bandwidth=1e-3, latency=0.0, memory_bandwidth=1e9)
    nothing_to_add = dask_product_seconds((0, 8, 0), (1, 1, 1), 8, 1, no_links)
    assert nothing_to_add < 1
