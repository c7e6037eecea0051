"""Sums on ranks: against exact arithmetic and the reference, and messages against the plan."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.algorithms.kahan_sum.plan import Summing, SumPlan, cost, peak, plan_sum, received
from dask_dgpu.algorithms.kahan_sum.rank import kahan_sum_rank
from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device.host import HostDevice
from graph_opt.model.cost import HOST
from graph_opt.model.layout import Index, Layout, cuts_of, dealt
from tests.support.exact import FAMILIES, exact, family, to_nearest, within_bound
from tests.support.profiles import examples
from tests.support.recording import Ledger, RecordingComm
from tests.support.reference.kahan_sum import kahan_sum_reference

Array = Any


def cut(array: Array, where: Layout) -> dict[Index, Array]:
    pairs = [list(pairwise(cuts)) for cuts in where.cuts]
    return {
        index: array[(..., *(slice(*pairs[k][at]) for k, at in enumerate(index)))]
        for index in where.indices()
    }


def planned(source: Layout, task: Summing, dtype: str, size: int, wanted: Any = None) -> SumPlan:
    cuts = [
        (0, 1) if k in task.axes else along
        for k, along in enumerate(source.cuts)
        if task.keepdims or k not in task.axes
    ]
    blocks = wanted or sorted({task.target(index) for index in source.indices()})
    return plan_sum(source, task, tuple(cuts), blocks, (dtype, dtype), size)


def run(plan: SumPlan, array: Array) -> tuple[dict[Index, Array], list[Ledger]]:
    every = cut(array, plan.source)

    def rank_program(comm: Comm) -> tuple[dict[Index, Array], Ledger]:
        recording = RecordingComm(comm)
        mine = {index: every[index] for index in plan.source.owned(comm.rank)}
        steps: list[tuple[int, int]] = []
        made = kahan_sum_rank(plan, recording, HostDevice(), mine, lambda *s: steps.append(s))
        assert set(made) == set(plan.result.owned(comm.rank))
        assert steps == [(done + 1, len(mine) + 1) for done in range(len(mine) + 1)]
        return made, recording.ledger

    results = run_local(plan.size, rank_program)
    found = {index: part for parts, _ in results for index, part in parts.items()}
    reference = kahan_sum_reference(plan, every)
    assert found.keys() == reference.keys()
    for index, block in found.items():
        assert block.dtype == plan.result_dtype
        assert block.shape == plan.result.block_shape(index)
        assert block.tobytes() == reference[index].tobytes()
    return found, [ledger for _, ledger in results]


@st.composite
def problems(draw: st.DrawFn) -> tuple[Layout, int]:
    shape = draw(st.lists(st.sampled_from([1, 2, 5, 7, 11]), min_size=1, max_size=3))
    size = draw(st.integers(1, 5))
    cuts = []
    for length in shape:
        edges = draw(st.sets(st.integers(1, length), max_size=3)) - {length}
        cuts.append((0, *sorted(edges), length))
    blocks = int(np.prod([len(along) - 1 for along in cuts]))
    ranks = st.lists(st.integers(0, size - 1), min_size=blocks, max_size=blocks)
    return Layout(tuple(cuts), tuple(draw(ranks))), size


@examples(150)
@given(problem=problems(), data=st.data(), keepdims=st.booleans(), wide=st.booleans())
def test_any_layout_axes_and_ranks(
    problem: tuple[Layout, int], data: st.DataObject, keepdims: bool, wide: bool
) -> None:
    source, size = problem
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, source.ndim - 1), min_size=1))))
    n = int(np.prod(source.shape))
    array = family("wide" if wide else "condition 1e16", n, "float64").reshape(source.shape)
    whole = np.moveaxis(array, axes, range(-len(axes), 0)).reshape(
        -1, *(array.shape[a] for a in axes)
    )
    for method in ("compensated", "reproducible"):
        plan = planned(source, Summing(axes, keepdims, method, "sum"), "float64", size)
        found, ledgers = run(plan, array)
        sums = np.empty(plan.result.shape)
        for index, view in cut(sums, plan.result).items():
            view[...] = found[index]
        for value, line in zip(sums.reshape(-1), whole, strict=True):
            if method == "reproducible":
                assert value == to_nearest(exact(line), "float64")
            else:
                assert within_bound(value, line, np.finfo(float).eps)
        if method == "compensated":
            assert [ledger.bytes_received for ledger in ledgers] == received(plan)
        for rank, ledger in enumerate(ledgers):
            owners = [plan.result.owner(i) for i, ranks in plan.adding.items() if rank in ranks]
            assert ledger.calls["exchange"] == 1
            if method == "compensated":
                assert sum(ledger.messages_sent.values()) == len(owners) - owners.count(rank)
                assert ledger.calls.total() == 1
            else:
                assert ledger.calls["all_reduce"] == 1


@examples(1000)
@given(problem=problems(), seed=st.integers(0, 2**32 - 1), name=st.sampled_from(FAMILIES))
def test_same_bits_for_any_chunks_ranks_and_order(
    problem: tuple[Layout, int], seed: int, name: str
) -> None:
    source, size = problem
    values = family(name, int(np.prod(source.shape)), "float64")
    array = np.random.default_rng(seed).permutation(values).reshape(source.shape)
    task = Summing(tuple(range(source.ndim)), False, "reproducible", "sum")
    found, _ = run(planned(source, task, "float64", size), array)
    assert found[()].tobytes() == to_nearest(exact(values), "float64").tobytes()


def test_same_bits_on_any_ranks() -> None:
    array = family("wide", 4000, "float32").reshape(200, 20)
    found = set()
    for size in (1, 2, 3, 5, 8):
        for rows in (200, 70, 13):
            chunks = [min(rows, 200 - at) for at in range(0, 200, rows)]
            source = Layout((cuts_of(chunks), (0, 20)), dealt(len(chunks), size))
            for kind in ("sum", "mean"):
                plan = planned(source, Summing((0,), False, "reproducible", kind), "float32", size)
                (block,) = run(plan, array)[0].values()
                found.add((kind, block.tobytes()))
    assert len(found) == 2


@pytest.mark.parametrize("method", ["compensated", "reproducible"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "complex64", "complex128"])
def test_other_dtypes(dtype: str, method: Any) -> None:
    array = np.arange(60).reshape(12, 5).astype(dtype) * (1 + 1j if dtype[0] == "c" else 1)
    source = Layout((cuts_of([5, 5, 2]), (0, 5)), (0, 1, 0))
    plan = planned(source, Summing((0,), True, method, "mean"), dtype, 3)
    (block,) = run(plan, array)[0].values()
    wide = array.astype("complex128" if dtype[0] == "c" else "float64")
    wanted = wide.mean(0, keepdims=True).astype(dtype)
    np.testing.assert_array_equal(block, wanted)
    assert peak(plan) >= array.nbytes / 2


@pytest.mark.parametrize("method", ["compensated", "reproducible"])
def test_result_of_double_precision(method: Any) -> None:
    array = np.tile(np.array([1, 1e-20, -1], "float32"), 2)[:, None]
    source = Layout((cuts_of([3, 3]), (0, 1)), (0, 1))
    task = Summing((0,), False, method, "sum")
    plan = replace(planned(source, task, "float32", 2), result_dtype="float64")
    (block,) = run(plan, array)[0].values()
    assert block.tolist() == [2 * float(np.float32(1e-20))]


@pytest.mark.parametrize("method", ["compensated", "reproducible"])
def test_wanted_blocks_alone(method: Any) -> None:
    array = np.random.default_rng(4).random((9, 8))
    source = Layout((cuts_of([3, 3, 3]), cuts_of([2, 6])), (0, -1, 1, -1, 0, -1))
    plan = planned(source, Summing((0,), False, method, "sum"), "float64", 2, [(0,)])
    every = cut(array, source)

    def rank_program(comm: Comm) -> dict[Index, Array]:
        mine = {index: every[index] for index in source.owned(comm.rank)}
        return kahan_sum_rank(plan, comm, HostDevice(), mine)

    first, second = run_local(2, rank_program)
    np.testing.assert_allclose({**first, **second}[0,], array[:, :2].sum(0), rtol=1e-15)


@pytest.mark.parametrize("method", ["compensated", "reproducible"])
def test_what_is_not_finite(method: Any) -> None:
    array = np.ones((4, 3))
    array[0, 0], array[3, 0], array[1, 1], array[2, 2] = np.inf, -np.inf, -np.inf, np.nan
    source = Layout((cuts_of([1] * 4), (0, 3)), (0, 1, 2, 0))
    plan = planned(source, Summing((0,), False, method, "sum"), "float64", 3)
    (block,) = run(plan, array)[0].values()
    np.testing.assert_array_equal(block, [np.nan, -np.inf, np.nan])


def test_owners_share_the_work_and_the_plan_knows_its_cost() -> None:
    chunks = cuts_of([1000] * 4)
    source = Layout((cuts_of([10] * 4), chunks), tuple(rank for rank in range(4) for _ in range(4)))
    plan = planned(source, Summing((0,), False, "compensated", "sum"), "float32", 4)
    assert sorted(plan.result.owners) == [0, 1, 2, 3]
    assert received(plan) == [3 * 16 * 1000] * 4
    assert peak(plan) == 4 * 10 * 4000 + 2 * 16 * 4000 + 3 * 16 * 1000
    alone = planned(source, Summing((0,), False, "compensated", "sum"), "float32", 4)
    work = 1.6e5 / HOST.memory_bandwidth + 4.8e4 / HOST.bandwidth
    assert cost(alone, HOST) == pytest.approx(work + HOST.latency)
