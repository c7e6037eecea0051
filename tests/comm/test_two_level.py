"""Collectives in two levels: right on any hosts, and no byte crosses between hosts twice."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.two_level import Relays, TwoLevelComm, two_level
from tests.comm import cases
from tests.support.profiles import examples
from tests.support.threads import run_wire

HOSTS = [(1, 2), (2, 2), (3, 1, 2), (1, 1, 1, 4), (5, 2)]
QUICK = [(3, 1, 2)]

CASES = [
    cases.ring,
    cases.scalars_and_nothing,
    cases.read_only_source,
    cases.all_reduce,
    cases.all_reduce_identical_bits,
    cases.complex_numbers_have_no_order,
    cases.bad_arguments,
    cases.all_to_all,
    cases.several_in_flight,
    cases.no_window,
]


def _variants():
    for case, hosts in product(CASES, HOSTS):
        marks = [] if hosts in QUICK else [pytest.mark.slow]
        yield pytest.param(case, hosts, marks=marks, id=f"{case.__name__}-{hosts}")


def _run(hosts, case, *args):
    def rank(comm):
        levelled = two_level(comm, hosts)
        assert isinstance(levelled, TwoLevelComm)
        return case(levelled, np, *args)

    return run_wire(sum(hosts), rank)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "hosts"), list(_variants()))
def test_every_case_holds_in_two_levels(case, hosts):
    _run(hosts, case)


hosts_drawn = st.lists(st.integers(1, 4), min_size=2, max_size=8).filter(
    lambda hosts: max(hosts) > 1 and sum(hosts) <= 13
)


@examples(30)
@given(hosts_drawn, st.integers(0, 2**16))
def test_all_to_all_sends_each_byte_between_hosts_once(hosts, seed):
    size, rng = sum(hosts), np.random.default_rng(seed)
    counts = rng.integers(0, 4, (size, size)) * rng.integers(0, 2, (size, size))
    of = np.repeat(np.arange(len(hosts)), hosts)

    def exchange(comm, xp):
        me = comm.rank
        parts = [np.arange(counts[me, q]) + 1000 * me + 10 * q for q in range(size)]
        out = np.zeros(counts[:, me].sum(), np.int64)
        whole = np.concatenate(parts)
        comm.all_to_all(out, counts[:, me].tolist(), whole, counts[me].tolist()).wait()
        wanted = [np.arange(counts[p, me]) + 1000 * p + 10 * me for p in range(size)]
        np.testing.assert_array_equal(out, np.concatenate(wanted))

    _, wire = _run(hosts, exchange)
    sent = wire.between(hosts, wire.nbytes)
    messages = wire.between(hosts, wire.messages)
    for a, b in product(range(len(hosts)), repeat=2):
        if a != b:
            assert sent[a, b] == 8 * counts[np.ix_(of == a, of == b)].sum()
            assert messages[a, b] <= hosts[b]  # one for each receiver, not one for each pair


@examples(30)
@given(hosts_drawn, st.integers(0, 300), st.sampled_from(["sum", "max"]))
def test_reductions_send_no_byte_between_hosts_twice(hosts, length, op):
    size = sum(hosts)

    def reduce(comm, xp):
        whole = np.random.default_rng(comm.rank).integers(-9, 9, length)
        comm.all_reduce(whole, op).wait()
        return whole

    found, wire = _run(hosts, reduce)
    wholes = [np.random.default_rng(rank).integers(-9, 9, length) for rank in range(size)]
    wanted = getattr(np, op)(wholes, axis=0)
    for each in found:
        np.testing.assert_array_equal(each, wanted)
    # every element reaches its last adder from each other host, and its sum each other host
    assert wire.between(hosts, wire.nbytes).total() == 2 * 8 * length * (len(hosts) - 1)


def test_sums_have_the_same_bits_in_every_run():
    def reduce(comm, xp):
        whole = np.random.default_rng(comm.rank).standard_normal(5000)
        comm.all_reduce(whole).wait()
        return whole

    first, second = (_run((2, 3), reduce)[0] for _ in range(2))
    by_host = [
        sum(np.random.default_rng(rank).standard_normal(5000) for rank in ranks)
        for ranks in ((0, 1), (2, 3, 4))
    ]
    for each in (*first, *second):
        np.testing.assert_array_equal(each, by_host[0] + by_host[1])


def test_relays_are_spread_over_a_host():
    seen = [Relays((4, 4, 4), rank) for rank in range(12)]
    assert seen[5].mine == range(4, 8)
    assert [len(targets) for targets in seen[5].targets.values()] == [2, 2, 2, 2]
    assert seen[5].of(1, 5) == 5
    assert [relay for relay, _ in seen[5].far] == [1, 9]


def test_one_host_and_other_transports_stay_as_they_are():
    def rank(comm):
        assert two_level(comm, (2,)) is comm
        assert two_level(comm, ()) is comm
        assert two_level(comm, (1, 1)) is comm
        with pytest.raises(ValueError, match="expected hosts of 2 ranks"):
            two_level(comm, (2, 1))
        with pytest.raises(ValueError, match="expected hosts of 2 ranks"):
            two_level(comm, (2, 0))

    run_wire(2, rank)
    run_local(3, lambda comm: two_level(comm, (1, 2)) is comm or pytest.fail("wrapped"))
