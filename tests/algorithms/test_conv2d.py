"""Convolutions on ranks against torch, and their cost against their plan."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.algorithms.conv2d.plan import (
    Conv2dPlan,
    cost,
    plan_conv2d,
    tilings,
    traffic,
    workspace,
)
from dask_dgpu.algorithms.conv2d.rank import conv2d_rank
from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels import conv
from dask_dgpu.kernels.device import HostDevice
from dask_dgpu.operations.conv2d import CONV2D
from dask_dgpu.operations.operation import Placed, Request, Value
from graph_opt.model.cost import HOST
from graph_opt.model.layout import Cuts, Index, Layout, cuts_of, dealt
from graph_opt.model.window import Convolution, Sliding, Window
from tests.algorithms.test_halo import blocks_of
from tests.algorithms.test_redistribute import even, layouts
from tests.support.profiles import examples
from tests.support.recording import Ledger, RecordingComm
from tests.support.reference.conv2d import check_conv2d

Array = Any
SAME = Convolution((Sliding(3, padding=(1, 1)), Sliding(3, padding=(1, 1))))


@dataclass(frozen=True)
class Problem:
    """Arrays, their layouts and the parameters."""

    arrays: tuple[Array, ...]
    layouts: tuple[Layout, ...]
    convolution: Convolution
    size: int

    def request(self, wanted: tuple[Index, ...] | None = None) -> Request:
        x, weight = self.arrays[0], self.arrays[1]
        cuts = self.convolution.result_cuts(self.layouts[0].cuts, len(weight))
        inputs = tuple(Placed(layout, x.dtype.name) for layout in self.layouts)
        result = Value(cuts, x.dtype.name, wanted)
        return Request(inputs, result, self.convolution, self.size, HOST, None)

    def check(self, blocks: dict[Index, Array], result: Layout) -> None:
        """Compare all blocks of the result with torch."""
        whole = np.zeros(result.shape, self.arrays[0].dtype)
        for index, block in blocks.items():
            whole[place_of(result.cuts, index)] = block
        rows, columns = self.convolution.axes
        padded = np.pad(self.arrays[0], ((0, 0), (0, 0), rows.padding, columns.padding))
        options = {
            "stride": (rows.stride, columns.stride),
            "dilation": (rows.dilation, columns.dilation),
            "groups": self.convolution.groups,
        }
        bias = self.arrays[2] if len(self.arrays) > 2 else None
        check_conv2d(whole, padded, self.arrays[1], bias, **options)


def place_of(cuts: tuple[Cuts, ...], index: Index) -> tuple[slice, ...]:
    return tuple(slice(c[at], c[at + 1]) for c, at in zip(cuts, index, strict=True))


def run(problem: Problem, plan: Conv2dPlan) -> tuple[dict[Index, Array], list[Ledger]]:
    """Convolve on ranks that are threads."""
    every = [blocks_of(*pair) for pair in zip(problem.arrays, problem.layouts, strict=True)]

    def rank_program(comm: Comm) -> tuple[dict[Index, Array], Ledger]:
        recording, steps = RecordingComm(comm), []
        mine = [
            {index: blocks[index] for index in layout.owned(comm.rank)}
            for blocks, layout in zip(every, problem.layouts, strict=True)
        ]
        made = conv2d_rank(
            plan, recording, HostDevice(), *mine, progress=lambda *step: steps.append(step)
        )
        assert set(made) == set(plan.result.owned(comm.rank))
        assert all(block.flags.c_contiguous for block in made.values())
        tiles = len(plan.tiles.owned(comm.rank))
        assert steps == [(done, tiles) for done in range(1, tiles + 1)]
        return made, recording.ledger

    results = run_local(plan.size, rank_program)
    blocks = {index: block for made, _ in results for index, block in made.items()}
    return blocks, [ledger for _, ledger in results]


@st.composite
def slidings(draw: st.DrawFn) -> Sliding:
    taps, stride, dilation = (draw(st.integers(1, 4)) for _ in range(3))
    return Sliding(taps, stride, (draw(st.integers(0, 5)), draw(st.integers(0, 5))), dilation)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    groups, inputs, outputs = (draw(st.integers(1, 3)) for _ in range(3))
    axes = draw(slidings()), draw(slidings())
    lengths = (max(1, a.reach - sum(a.padding)) + draw(st.integers(0, 12)) for a in axes)
    shapes = [
        (draw(st.integers(0, 5)), groups * inputs, *lengths),
        (groups * outputs, inputs, axes[0].taps, axes[1].taps),
        (groups * outputs,),
    ][: draw(st.integers(2, 3))]
    size = draw(st.integers(1, 7))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    return Problem(
        tuple(rng.standard_normal(shape) for shape in shapes),
        tuple(draw(layouts(shape, st.integers(0, size - 1))) for shape in shapes),
        Convolution(axes, groups),
        size,
    )


@examples(200)
@given(problem=problems(), data=st.data())
def test_equals_torch_and_sends_what_the_plan_says(problem: Problem, data: st.DataObject) -> None:
    request = problem.request()
    ways = list(tilings(request.result.cuts, set(request.result.indices()), problem.size))
    if data.draw(st.booleans()):
        plan = CONV2D.plan(request)
    else:  # tiles and blocks anywhere
        cuts = data.draw(st.sampled_from(ways))
        ranks = st.integers(0, problem.size - 1)
        tiles, result = (
            Layout(c, tuple(data.draw(st.lists(ranks, min_size=n, max_size=n))))
            for c in (cuts, request.result.cuts)
            for n in [prod(len(along) - 1 for along in c)]
        )
        x, weight, *bias = problem.layouts
        plan = plan_conv2d(
            problem.convolution,
            x,
            weight,
            bias[0] if bias else None,
            tiles,
            tiles if cuts == result.cuts else result,
            "float64",
            problem.size,
            limit=data.draw(st.sampled_from([1, 1000, 1 << 20])),
        )
    plan = pickle.loads(pickle.dumps(plan))
    blocks, ledgers = run(problem, plan)
    problem.check(blocks, plan.result)
    for rank, ledger in enumerate(ledgers):
        sent = {peer: n for peer, n in enumerate(traffic(plan)[rank].tolist()) if n}
        assert dict(ledger.sent) == sent
    predicted = CONV2D.cost(plan, HOST)
    assert predicted.moved_bytes == max(ledger.bytes_received for ledger in ledgers)
    assert predicted.peak_bytes >= sum(each.nbytes for each in problem.arrays) / problem.size


@examples(100)
@given(problem=problems(), data=st.data())
def test_only_wanted_blocks_are_computed(problem: Problem, data: st.DataObject) -> None:
    everything = list(problem.request().result.indices())
    wanted = data.draw(st.lists(st.sampled_from(everything), unique=True, min_size=1))
    plan = CONV2D.plan(problem.request(tuple(sorted(wanted))))
    blocks, _ = run(problem, plan)
    assert set(blocks) == set(wanted)
    whole, _ = run(problem, CONV2D.plan(problem.request()))
    for index, block in blocks.items():
        np.testing.assert_allclose(block, whole[index], rtol=0, atol=1e-11)


@given(axis=slidings(), data=st.data())
def test_windows_are_those_of_their_results(axis: Sliding, data: st.DataObject) -> None:
    length = max(1, axis.reach - sum(axis.padding)) + data.draw(st.integers(0, 30))
    count = axis.results(length)
    before, after = axis.padding
    zeros = np.concatenate([np.full(before, -1), np.arange(length), np.full(after, -1)])
    start = data.draw(st.integers(0, count - 1))
    stop = data.draw(st.integers(start + 1, count))
    window = axis.window(start, stop, length)
    read = zeros[start * axis.stride : (stop - 1) * axis.stride + axis.reach].tolist()
    inside = list(range(window.start, window.stop))
    assert [-1] * window.before + inside + [-1] * window.after == read
    assert window.length == len(read)
    edges = data.draw(st.lists(st.integers(0, length), max_size=5))
    cuts = axis.result_cuts((0, *sorted(edges), length))
    assert (cuts[0], cuts[-1]) == (0, count)
    assert all(lo < hi for lo, hi in pairwise(cuts))
    near = axis.source_cuts(cuts, length)
    assert list(near) == sorted(near)
    assert (near[0], near[-1], len(near)) == (0, length, len(cuts))


def layout_of(shape: tuple[int, ...], parts: tuple[int, ...], size: int) -> Layout:
    cuts = tuple(even(length, count) for length, count in zip(shape, parts, strict=True))
    return Layout(cuts, dealt(prod(parts), size))


def planned(shape: tuple[int, ...], parts: tuple[int, ...]) -> Conv2dPlan:
    """Plan a convolution of 3 x 3 on even blocks of four ranks; rank 0 has the weights."""
    weight = (shape[1], shape[1], 3, 3)
    layouts = layout_of(shape, parts, 4), Layout(tuple((0, n) for n in weight), (0,))
    arrays = tuple(np.broadcast_to(1.0, each) for each in (shape, weight))
    return CONV2D.plan(Problem(arrays, layouts, SAME, 4).request())


def test_whole_images_stay_where_they_are() -> None:
    plan = planned((8, 4, 32, 32), (8, 1, 1, 1))
    weight = 4 * 4 * 9 * 8
    assert traffic(plan).tolist() == [[0, weight, weight, weight], *[[0] * 4] * 3]
    assert len(plan.direct) == 8
    assert "by images in 8 tiles" in CONV2D.cost(plan, HOST).text


def test_a_large_image_sends_its_halos() -> None:
    plan = planned((1, 2, 64, 32), (1, 1, 4, 1))
    row, weight = 2 * 32 * 8, 2 * 2 * 9 * 8
    moved = traffic(plan)
    moved[0, 1:] -= weight
    assert moved.tolist() == (row * (np.eye(4, k=1) + np.eye(4, k=-1))).astype(int).tolist()
    assert "by space in 4 tiles" in CONV2D.cost(plan, HOST).text


def test_fewer_blocks_than_ranks_are_divided() -> None:
    big = planned((1, 512, 64, 64), (1, 1, 1, 1))
    assert set(big.tiles.owners) == {0, 1, 2, 3}
    assert big.merge is not None
    assert "by space" in CONV2D.cost(big, HOST).text
    images = planned((8, 512, 32, 32), (1, 1, 1, 1))
    assert set(images.tiles.owners) == {0, 1, 2, 3}
    assert cost(images, HOST) < cost(replace_tiles(images), HOST)
    small = planned((1, 1, 8, 8), (1, 1, 1, 1))
    assert small.merge is None
    assert "on one rank" in CONV2D.cost(small, HOST).text


def replace_tiles(plan: Conv2dPlan) -> Conv2dPlan:
    """The same convolution with blocks as tiles."""
    x, weight = plan.windows.layout, plan.weight.layout
    whole = plan.result, plan.result, plan.windows.dtype, plan.size
    return plan_conv2d(plan.convolution, x, weight, None, *whole)


def test_windows_within_a_block_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    arrays = rng.standard_normal((4, 2, 8, 8)), rng.standard_normal((2, 2, 3, 3))
    layouts = layout_of(arrays[0].shape, (4, 1, 1, 1), 2), layout_of(arrays[1].shape, (1,) * 4, 2)
    problem, seen = Problem(arrays, layouts, SAME, 2), []

    def watched(x: Array, *others: Any) -> Array:
        seen.append(np.shares_memory(x, arrays[0]))
        return original(x, *others)

    original = conv.conv2d
    monkeypatch.setattr(conv, "conv2d", watched)
    plan = CONV2D.plan(problem.request())
    problem.check(run(problem, plan)[0], plan.result)
    assert seen == [True] * 4
    weights, padded, image = (8 * n for n in (2 * 2 * 9, 2 * 10 * 10, 2 * 8 * 8))
    assert workspace(plan) == 2 * weights + padded + image  # a message, a copy, and torch's


def test_errors() -> None:
    x = Layout((cuts_of([2]), (0, 1), (0, 8), (0, 8)), (0,))
    weight = Layout(((0, 1), (0, 1), (0, 3), (0, 3)), (0,))
    tiles = Layout(x.cuts, (0,))
    with pytest.raises(ValueError, match="expected an owner of block"):
        plan_conv2d(SAME, replace(x, owners=(-1,)), weight, None, tiles, tiles, "float64", 2)
    assert Window(0, 3, 1, 1).length == 5
