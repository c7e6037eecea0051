"""Measured rates: every rank gets the figures that the cost model knows."""

from __future__ import annotations

from functools import partial
from math import isfinite
from typing import Any

import pytest

from dask_dgpu.algorithms import probe
from dask_dgpu.comm.local import run_local
from dask_dgpu.kernels.device import HostDevice
from graph_opt.model.cost import FIGURES, HOST, calibrated
from tests.support.threads import run_wire


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(probe.BLOCK_BYTES, "cpu", 1 << 12)
    monkeypatch.setitem(probe.SIDE, "cpu", 16)
    monkeypatch.setitem(probe.LEAST_SECONDS, "cpu", 0.0)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_part_measures_on_every_rank(size: int) -> None:
    def rank(comm: Any) -> dict[str, float]:
        found: dict[str, float] = {}
        for part in probe.PARTS.values():
            found |= part(comm, HostDevice())
        return found

    answers = run_local(size, rank)
    names_of_all = {*answers[0]}
    names = {name for name in answers[0] if "." not in name}
    alone = {"memory_bandwidth", "launch_seconds", "window_seconds"}
    assert names == (alone if size == 1 else alone | {"latency", "bandwidth"})
    for answer in answers:
        assert answer.keys() == names_of_all
        assert answer.pop("latency", 0) >= 0  # a difference, lost in the noise for such sizes
        assert all(value > 0 and isfinite(value) for value in answer.values())


@pytest.mark.parametrize("hosts", [(2, 2), (1, 3), (1, 1)])
def test_hosts_have_rates_within_and_between(hosts: tuple[int, ...]) -> None:
    size = sum(hosts)
    answers, _ = run_wire(size, lambda comm: probe.exchange(comm, HostDevice(), hosts))
    for rank, answer in enumerate(answers):
        alone = hosts[0 if rank < hosts[0] else 1] == 1
        names = {"latency", "host_bandwidth", "bandwidth"}
        assert answer.keys() == names - ({"bandwidth"} if alone else set())
        assert all(value >= 0 and isfinite(value) for value in answer.values())


def test_the_cost_model_knows_all_figures() -> None:
    def rank(comm: Any) -> dict[str, float]:
        return {k: v for part in probe.PARTS.values() for k, v in part(comm, HostDevice()).items()}

    figures = run_local(2, rank)[0]
    machine = calibrated(HOST, figures)
    assert {name for name, _ in machine.products} == set(probe.gemm.BLAS)
    assert machine.flops == figures["float64.square"]
    known = {*figures} & {*FIGURES, "window_seconds"} - {"latency"}
    assert {*machine.measured} - {"latency"} == known | {"products", "flops"}


def test_short_work_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(probe.LEAST_SECONDS, "cpu", 0.05)
    runs: list[None] = []
    seconds = run_local(
        1, lambda comm: probe._local(comm, HostDevice(), partial(runs.append, None), 1)
    )
    assert len(runs) > 3 * 20
    assert seconds[0] < 0.05 / 20
