from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_opt.model.cost import (
    FIGURES,
    HOST,
    UNRUN,
    Machine,
    ProductRates,
    calibrated,
    dask_product_seconds,
    gang_seconds,
    pipelined,
)

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
    few = dask_product_seconds((4096,) * 3, (2, 2, 2), "float64", ranks, HOST)
    many = dask_product_seconds((4096,) * 3, (64, 64, 64), "float64", ranks, HOST)
    assert many > few


@pytest.mark.parametrize(("inner", "waits"), [(1, 0), (3, 1)])
def test_plain_dask_adds_partial_products_a_round_trip_later(inner: int, waits: int) -> None:
    slow = replace(HOST, round_trip_seconds=1.0)
    facts = (64, 64, 64), (2, inner, 2), "float64", 4
    late = dask_product_seconds(*facts, slow) - dask_product_seconds(*facts, HOST)
    assert late == pytest.approx(waits * (1.0 - HOST.round_trip_seconds))


def test_one_rank_moves_only_partial_sums() -> None:
    no_links = Machine(flops=1e9, bandwidth=1e-3, latency=0.0, memory_bandwidth=1e9)
    nothing_to_add = dask_product_seconds((0, 8, 0), (1, 1, 1), "float64", 1, no_links)
    assert nothing_to_add < 1


def test_only_good_figures_replace_defaults() -> None:
    figures = {"bandwidth": 3e8, "latency": 0.0, "task_seconds": float("nan"), "unknown": 1.0}
    machine = calibrated(HOST, figures | {"float64.square": 1e9, "memory_bandwidth": float("inf")})
    assert machine.bandwidth == 3e8
    assert machine.measured == ("bandwidth",)
    assert machine.products == ()  # a dtype needs all shapes
    assert (machine.latency, machine.flops) == (HOST.latency, HOST.flops)
    assert calibrated(HOST, dict.fromkeys(FIGURES, 2.0)).measured == tuple(sorted(FIGURES))


def test_rates_of_products_by_shape() -> None:
    rates = {"float32.square": 8e9, "float32.tall": 4e9, "float32.vector": 2e9}
    machine = calibrated(HOST, rates)
    assert dict(machine.products) == {"float32": ProductRates(8e9, 4e9, 2e9)}
    for shape, rate in [((128, 999, 128), 8e9), ((127, 128, 128), 4e9), ((9, 9, 1), 2e9)]:
        assert machine.product_rate(shape, "float32") == rate
        assert machine.product_rate(shape, "int64") == HOST.flops


def test_a_gang_costs_tasks_steps_and_two_round_trips() -> None:
    machine = calibrated(
        HOST, {"task_seconds": 1.0, "step_seconds": 10.0, "round_trip_seconds": 100.0}
    )
    assert gang_seconds(machine, 3, 2) == 223
    assert gang_seconds(replace(machine, round_trip_seconds=0.0), 3, 2) == 23


def test_a_gang_on_blocks_in_memory_waits_for_no_task() -> None:
    machine = calibrated(
        HOST, {"task_seconds": 10.0, "step_seconds": 10.0, "round_trip_seconds": 100.0}
    )
    assert gang_seconds(machine, 10, 2, at_once=True) == 100 * UNRUN + 20
