"""Algorithms on several hosts: right results, and the fewest bytes between hosts."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.algorithms.redistribute.plan import plan_redistribute
from dask_dgpu.algorithms.redistribute.rank import schedule as rounds_of
from dask_dgpu.algorithms.stencil.plan import even_tiles
from dask_dgpu.algorithms.summa.choose import link_bytes, plan_summa, transfers_of
from dask_dgpu.algorithms.summa.plan import Operand, SummaPlan, schedule
from dask_dgpu.algorithms.summa.rank import summa_rank
from dask_dgpu.kernels.device import HostDevice
from graph_opt.model.cost import HOST, Machine, between_hosts, host_by_rank
from graph_opt.model.layout import Layout, dealt, even_spans
from tests.support.profiles import examples
from tests.support.threads import run_wire

Array = Any

SLOW_LINKS = replace(HOST, bandwidth=2e9, latency=2e-3, host_bandwidth=1e8, memory_bandwidth=1e10)


def on(hosts: tuple[int, ...]) -> Machine:
    return replace(SLOW_LINKS, hosts=hosts)


def even_cuts(length: int, parts: int) -> tuple[int, ...]:
    return (0, *(hi for _, hi in even_spans(0, length, parts)))


def matrix(shape: tuple[int, int], grid: tuple[int, int], size: int) -> Operand:
    owners = dealt(grid[0] * grid[1], size)
    rows, columns = (even_cuts(*each) for each in zip(shape, grid, strict=True))
    return Operand((rows, columns), owners, "int64")


def blocks_of(whole: Array, layout: Layout) -> dict[tuple[int, ...], Array]:
    spans = [list(pairwise(cuts)) for cuts in layout.cuts]
    return {
        index: whole[tuple(slice(*along[at]) for along, at in zip(spans, index, strict=True))]
        for index in layout.indices()
    }


def least_bytes(plan: SummaPlan) -> Counter[int]:
    """Return the bytes of operands that each host needs and does not have."""
    host, found = host_by_rank(plan.hosts), Counter[int]()
    for operand in (0, 1):
        layout = plan.operands[operand]
        owner = np.zeros((layout.rows[-1], layout.columns[-1]), np.int64)
        for (i, j), rank in zip(layout.indices(), layout.owners, strict=True):
            rows, columns = pairwise(layout.rows), pairwise(layout.columns)
            owner[slice(*list(rows)[i]), slice(*list(columns)[j])] = host[rank]
        for at in range(len(plan.hosts)):
            needed = np.zeros(owner.shape, bool)
            for rank, (_, _, layer) in plan.positions.items():
                if host[rank] == at:
                    part, inner = plan.rectangle(rank)[operand], plan.spans[2][layer]
                    spans = (part, inner) if operand == 0 else (inner, part)
                    needed[slice(*spans[0]), slice(*spans[1])] = True
            found[at] += 8 * int((needed & (owner != at)).sum())
    return found


def multiplied(plan: SummaPlan, hosts: tuple[int, ...]) -> Any:
    """Multiply on ranks as threads; compare with NumPy, and return what was sent."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 9, (x.rows[-1], x.columns[-1])) for x in plan.operands)
    left, right = blocks_of(a, plan.a), blocks_of(b, plan.b)

    def rank(comm: Any) -> dict[Any, Array]:
        mine = [
            {index: np.ascontiguousarray(blocks[index]) for index in layout.owned(comm.rank)}
            for blocks, layout in ((left, plan.a), (right, plan.b))
        ]
        return summa_rank(plan, comm, HostDevice(), *mine)

    found, wire = run_wire(plan.size, rank)
    result = Layout((plan.a.rows, plan.b.columns), (0,) * (plan.a.grid[0] * plan.b.grid[1]))
    wanted = blocks_of(a @ b, result)
    made = {index: block for each in found for index, block in each.items()}
    assert made.keys() == wanted.keys()
    for index, block in made.items():
        np.testing.assert_array_equal(block, wanted[index])
    return wire


def entering(wire: Any, hosts: tuple[int, ...]) -> Counter[int]:
    found = Counter[int]()
    for (_, receiver), nbytes in wire.between(hosts, wire.nbytes).items():
        found[receiver] += nbytes
    return found


HOSTS = [(1, 1), (2, 2), (3, 1), (1, 2, 4), (2, 2, 2), (5, 2), (1,) * 8, (2,) * 4]


@pytest.mark.parametrize("hosts", HOSTS)
def test_products_send_each_host_what_it_lacks_once(hosts: tuple[int, ...]) -> None:
    size = sum(hosts)
    a, b = matrix((48, 64), (6, 8), size), matrix((64, 80), (8, 5), size)
    plan = plan_summa(a, b, "int64", size, on(hosts))
    assert plan.hosts == hosts
    if plan.mesh[2] > 1:
        plan = plan_summa(a, b, "int64", size, on(hosts), strategy="summa")
    wire = multiplied(plan, hosts)
    least = least_bytes(plan)
    crossing = between_hosts(direct(plan), hosts).sum(axis=0)
    for host, got in enumerate(np.bincount(host_by_rank(hosts), crossing)):
        assert entering(wire, hosts)[host] == got == least[host]
    exact, _ = link_bytes(plan, [*map(owned_of(plan), (0, 1))])
    np.testing.assert_allclose(exact, [least[host] for host in range(len(hosts))], rtol=0.5)


def direct(plan: SummaPlan) -> Any:
    """Return the bytes that each rank sends to each, without those that it passes on."""
    found = np.zeros((plan.size, plan.size), np.int64)
    _, moves = plan.moves
    some = (moves.source != moves.target) & (moves.passed == 0)
    np.add.at(found, (moves.source[some], moves.target[some]), moves.nbytes[some])
    return found


def owned_of(plan: SummaPlan) -> Any:
    from dask_dgpu.algorithms.summa.choose import _owned_bytes

    return lambda which: _owned_bytes(plan, which)


@examples(20)
@given(
    st.lists(st.integers(1, 3), min_size=2, max_size=8).filter(lambda hosts: sum(hosts) <= 11),
    st.tuples(*[st.sampled_from([0, 1, 3, 7, 13])] * 3),
    st.tuples(*[st.integers(1, 4)] * 3),
    st.sampled_from(["auto", "row", "column", "summa", "inner"]),
)
def test_any_product_on_any_hosts(
    hosts: list[int], shape: tuple[int, int, int], grid: tuple[int, int, int], strategy: Any
) -> None:
    size, (m, k, n), (i, j, w) = sum(hosts), shape, grid
    a, b = matrix((m, k), (i, j), size), matrix((k, n), (j, w), size)
    plan = plan_summa(a, b, "int64", size, on(tuple(hosts)), strategy=strategy)
    multiplied(plan, tuple(hosts))


def test_the_busier_dimension_of_the_mesh_is_within_hosts() -> None:
    """Of eight places in a row, four hosts have two each only if nothing else is cheaper."""
    hosts = (4, 4, 4, 4)
    a, b = matrix((160, 160), (16, 16), 16), matrix((160, 160), (16, 16), 16)
    plan = plan_summa(a, b, "int64", 16, on(hosts), mesh=(4, 4, 1))
    seats = host_by_rank(hosts)[np.reshape(plan.places, (4, 4))]
    for at in range(4):
        rows, columns = np.nonzero(seats == at)
        assert len(set(rows)) * len(set(columns)) == 4  # a rectangle, no row or column shared less
    tall = plan_summa(
        matrix((1600, 16), (16, 16), 16), matrix((16, 160), (16, 16), 16), "int64", 16, on(hosts)
    )
    # A is ten times B, so the ranks that need a row of A are on one host
    seats = host_by_rank(hosts)[np.reshape(tall.places, tall.mesh)]
    assert all(len(set(row.ravel())) == 1 for row in seats)


@pytest.mark.slow
def test_what_a_rank_does_not_do_is_not_in_its_plan() -> None:
    """512 ranks on 64 hosts: a rank's own steps, and a plan of the size of its layouts."""
    sizes, pieces = [], []
    for hosts in ((8,) * 2, (8,) * 64):
        size = sum(hosts)
        a = matrix((4096, 4096), (32, 32), size)
        plan = plan_summa(a, a, "int64", size, on(hosts), mesh=(size // 8, 8, 1))
        sizes.append(len(pickle.dumps(plan)))
        steps = schedule(plan, 1)
        pieces.append(
            sum(
                len(some)
                for step in steps
                for each in (step.sends, step.receives, step.passes, step.passed)
                for some in each
            )
        )
    assert sizes[1] < 3 * sizes[0]  # each rank has a place in the mesh
    assert pieces[1] <= pieces[0]


@pytest.mark.slow
def test_a_rank_of_512_transposes_its_own_pieces() -> None:
    shape = 1024, 1024
    source, target = even_tiles(shape, (512, 1)), even_tiles(shape, (1, 512))
    plan = plan_redistribute(source, target, "float64", 512)
    (only,) = rounds_of(plan, 3).rounds
    assert len(only.sends.shapes) == len(only.receives.shapes) == 511


def test_predicted_links_count() -> None:
    a = matrix((64, 64), (8, 8), 8)
    for hosts in ((4, 4), (2, 2, 2, 2)):
        machine = on(hosts)
        plan = plan_summa(a, a, "int64", 8, machine, mesh=(4, 2, 1))
        rate = transfers_of(plan, machine, 1e4).bandwidth
        assert machine.host_bandwidth is not None
        assert machine.host_bandwidth / 4 < rate < machine.bandwidth
    assert transfers_of(replace(plan, hosts=()), HOST, 1e4) is HOST
