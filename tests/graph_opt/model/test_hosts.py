"""Hosts of ranks, and the seconds of transfers between them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from graph_opt.model.cost import (
    HOST,
    between_hosts,
    calibrated,
    host_by_rank,
    hosts_of,
    transfer_seconds,
)

MACHINE = replace(HOST, bandwidth=100.0, hosts=(2, 1), host_bandwidth=10.0)


@pytest.mark.parametrize(
    ("names", "hosts"),
    [
        ("", ()),
        ("a", ()),
        ("aaa", ()),
        ("ab", (1, 1)),
        ("aabccc", (2, 1, 3)),
        ("aba", ()),  # not numbered host by host
    ],
)
def test_ranks_of_hosts(names: str, hosts: tuple[int, ...]) -> None:
    assert hosts_of(names) == hosts
    if hosts:
        assert [sorted(set(names))[at] for at in host_by_rank(hosts)] == list(names)


def test_transfers_take_the_time_of_the_busiest_rank_and_link() -> None:
    counts = np.array([[0, 300, 50], [0, 0, 20], [10, 0, 0]])
    assert between_hosts(counts, (2, 1)).tolist() == [[0, 0, 50], [0, 0, 20], [10, 0, 0]]
    assert transfer_seconds(counts, MACHINE) == 300 / 100 + 70 / 10
    one_host = [replace(MACHINE, hosts=()), replace(MACHINE, host_bandwidth=None)]
    for machine in (*one_host, replace(MACHINE, hosts=(2, 2))):  # hosts of another gang
        assert transfer_seconds(counts, machine) == 350 / 100
    assert MACHINE.rank_rate(3) == 5
    assert MACHINE.rank_rate(4) == 100


def test_two_levels_are_for_links_that_are_slower_than_those_within() -> None:
    assert MACHINE.two_level(3)
    assert not MACHINE.two_level(4)
    assert not replace(MACHINE, host_bandwidth=300.0).two_level(3)
    assert not replace(MACHINE, hosts=(1, 1, 1)).two_level(3)
    assert not HOST.two_level(3)


def test_figures_between_hosts_are_measured_ones() -> None:
    machine = calibrated(HOST, {"host_bandwidth": 5.0, "host_latency": 0.25})
    assert machine.host_bandwidth == 5.0
    assert machine.measured == ("host_bandwidth",)  # files of earlier versions have more
