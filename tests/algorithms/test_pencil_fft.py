"""The plan of a transform: what is local, what moves, and that it is the least."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.fft
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.algorithms.pencil_fft.plan import Exchange, PencilPlan, plan_pencil_fft
from dask_dgpu.kernels.fft import TO_HALF_COMPLEX, TO_REAL, TRIGONOMETRIC, Transform
from graph_opt.model.layout import Chunks, even_spans

DTYPES = ["bool", "int32", "float16", "float32", "float64", "complex64", "complex128"]


def even(length: int, parts: int) -> tuple[int, ...]:
    return tuple(hi - lo for lo, hi in even_spans(0, length, parts))


def grid(lengths: tuple[int, ...], parts: tuple[int, ...]) -> Chunks:
    return tuple(even(length, count) for length, count in zip(lengths, parts, strict=True))


def cube(n: int, parts: tuple[int, ...], kinds: str = "fft fft fft", **options: Any) -> PencilPlan:
    transforms = [Transform(kind, axis, n) for axis, kind in enumerate(kinds.split())]
    return plan_pencil_fft(grid((n,) * len(parts), parts), "complex128", transforms, **options)


def blocks(chunks: Chunks) -> int:
    return math.prod(map(len, chunks))


def shape(chunks: Chunks) -> tuple[int, ...]:
    return tuple(map(sum, chunks))


def axes(plan: PencilPlan) -> list[list[int]]:
    return [sorted(each.axis for each in stage.transforms) for stage in plan.stages]


def moving(plan: PencilPlan) -> list[Exchange]:
    return [exchange for exchange in plan.exchanges if not exchange.local]


@st.composite
def problems(draw: st.DrawFn) -> tuple[Chunks, str, tuple[Transform, ...]]:
    lengths = st.sampled_from([1, 2, 3, 5, 7, 8, 12, 31])
    sizes = draw(st.lists(lengths, min_size=1, max_size=4))
    chunks = []
    for length in sizes:
        cuts = draw(st.sets(st.integers(1, max(1, length - 1)), max_size=4))
        edges = sorted({0, length, *(cut for cut in cuts if cut < length)})
        chunks.append(tuple(np.diff(edges).tolist()))
    which = draw(
        st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=len(sizes), unique=True)
    )
    dtype = draw(st.sampled_from(DTYPES))
    real = ["rfft", "ihfft"] if not dtype.startswith("complex") else []
    special = draw(st.sampled_from(["fft", "ifft", "irfft", "hfft", *real, *TRIGONOMETRIC]))
    others = st.sampled_from(["fft", "fft", *TRIGONOMETRIC])
    kinds = [special, *(draw(others) for _ in which[1:])]
    transforms = tuple(
        Transform(kind, axis, draw(lengths_for(kind, sizes[axis])))
        for kind, axis in zip(kinds, which, strict=True)
    )
    return tuple(chunks), dtype, transforms


def lengths_for(kind: str, length: int) -> st.SearchStrategy[int]:
    least = 2 if kind == "dct1" else 1
    return st.one_of(st.just(max(least, length)), st.integers(least, 40))


def one(array: Any, transform: Transform) -> Any:
    kind, options = transform.kind, {"n": transform.n, "axis": transform.axis}
    if kind in TRIGONOMETRIC:
        return getattr(scipy.fft, kind[:-1])(array, int(kind[-1]), **options, norm=transform.norm)
    return getattr(np.fft, kind)(array, **options, norm=transform.norm)


def reference(array: Any, transforms: tuple[Transform, ...]) -> Any:
    def order(each: Transform) -> int:
        return 0 if each.kind in TO_HALF_COMPLEX else 2 if each.kind in TO_REAL else 1

    for each in sorted(transforms, key=order):
        array = one(array, each)
    return array


@given(
    problem=problems(),
    layout=st.sampled_from(["any", "input"]),
    ranks=st.one_of(st.none(), st.integers(1, 7)),
)
def test_plan(problem: Any, layout: Any, ranks: int | None) -> None:
    chunks, dtype, transforms = problem
    plan = plan_pencil_fft(chunks, dtype, transforms, output_layout=layout, ranks=ranks)
    expected = reference(np.zeros(shape(chunks), dtype), transforms)
    assert shape(plan.output_chunks) == expected.shape
    assert plan.output_dtype == expected.dtype

    done = [each for stage in plan.stages for each in stage.transforms]
    assert sorted(done, key=lambda each: each.axis) == sorted(
        transforms, key=lambda each: each.axis
    )
    fourier = [each for each in done if each.kind not in TRIGONOMETRIC]
    assert all(each.kind not in TO_HALF_COMPLEX for each in fourier[1:])
    assert all(each.kind not in TO_REAL for each in fourier[:-1])
    for stage in plan.stages:
        assert all(len(stage.chunks[each.axis]) == 1 for each in stage.transforms)

    target = ranks or blocks(chunks)
    *before, last = plan.exchanges
    for exchange, stage in zip(before, plan.stages, strict=True):
        whole = {each.axis for each in transforms if len(exchange.target[each.axis]) == 1}
        assert {each.axis for each in stage.transforms} <= whole
        if not exchange.local:
            free = [n for axis, n in enumerate(shape(exchange.target)) if axis not in whole]
            assert blocks(exchange.target) >= min(target, math.prod(free))
            for axis, (old, new) in enumerate(zip(exchange.source, exchange.target, strict=True)):
                if axis not in whole:
                    assert len(new) >= len(old) or sum(new) < sum(old)
                if len(new) > len(old):
                    assert max(new) - min(new) <= 1
    if layout == "any":
        assert last.source == last.target
    else:
        for old, new in zip(chunks, plan.output_chunks, strict=True):
            assert new == old or (sum(new) != sum(old) and len(new) == min(len(old), sum(new)))
    for size in (1, 2, 7):
        bound = sum(exchange.nbytes for exchange in moving(plan)) * (size - 1) / size
        assert 0 <= plan.moved(size) <= bound * (1 + 1e-12)
    assert plan == plan_pencil_fft(chunks, dtype, transforms, output_layout=layout, ranks=ranks)


def test_slab_needs_one_transpose() -> None:
    plan = cube(4096, (8, 1), "fft fft")
    assert axes(plan) == [[1], [0]]
    assert plan.output_chunks == grid((4096, 4096), (1, 8))
    share = 4096**2 * 16 / 8
    assert plan.moved(8) == pytest.approx(8 * share * 7 / 8)


def test_cosines_commute_with_transforms_of_real_numbers() -> None:
    chunks = grid((32, 32), (4, 1))
    forward = plan_pencil_fft(
        chunks, "float64", [Transform("rfft", 0, 32), Transform("dct2", 1, 32)]
    )
    assert axes(forward) == [[1], [0]]
    assert [exchange.dtype for exchange in moving(forward)] == ["float64"]
    backward = plan_pencil_fft(
        forward.output_chunks, "complex128", [Transform("irfft", 0, 32), Transform("dct3", 1, 32)]
    )
    assert axes(backward) == [[0], [1]]
    assert [exchange.dtype for exchange in moving(backward)] == ["float64"]
    assert (backward.output_dtype, backward.output_chunks) == ("float64", chunks)


@pytest.mark.parametrize("kind", ["dct2", "dst1"])
def test_cosines_and_sines_stay_real(kind: str) -> None:
    chunks = grid((64, 64), (8, 1))
    plan = plan_pencil_fft(chunks, "float32", [Transform(kind, axis, 64) for axis in (0, 1)])
    assert axes(plan) == [[1], [0]]
    assert plan.output_dtype == "float32"
    assert plan.moved(8) == pytest.approx(64 * 64 * 4 * 7 / 8)


def test_there_and_back_needs_two_transposes() -> None:
    there = cube(4096, (8, 1), "fft fft")
    back = plan_pencil_fft(
        there.output_chunks, "complex128", [Transform("ifft", axis, 4096) for axis in (0, 1)]
    )
    assert len(moving(there)) == len(moving(back)) == 1
    assert back.output_chunks == there.input_chunks


def test_axes_that_remain_are_long_enough_for_a_slab() -> None:
    plan = cube(64, (8, 8, 1))
    assert axes(plan) == [[2], [0, 1]]
    assert len(moving(plan)) == 1
    assert plan.output_chunks == grid((64, 64, 64), (1, 1, 64))


def test_axes_that_remain_are_too_short_for_a_slab() -> None:
    plan = cube(16, (8, 8, 1))
    assert axes(plan) == [[2], [0], [1]]
    assert [blocks(exchange.target) for exchange in moving(plan)] == [64, 64]
    # each exchange within a row or a column of the mesh
    assert plan.moved(64) == pytest.approx(2 * 16**3 * 16 * 7 / 8)


def test_fewer_ranks_make_a_slab_of_it() -> None:
    assert len(moving(cube(16, (8, 8, 1)))) == 2
    plan = cube(16, (8, 8, 1), ranks=8)
    assert len(moving(plan)) == 1
    assert blocks(plan.output_chunks) == 8


def test_batch_axis_is_cut_and_nothing_else() -> None:
    chunks = grid((40, 32, 32), (1, 4, 1))
    plan = plan_pencil_fft(chunks, "float64", [Transform("fft", 1, 32), Transform("fft", 2, 32)])
    assert axes(plan) == [[1, 2]]  # real numbers move, not complex ones
    assert plan.output_chunks == grid((40, 32, 32), (4, 1, 1))
    (exchange,) = moving(plan)
    assert exchange.dtype == "float64"


def test_real_transform_comes_first_and_last() -> None:
    chunks = grid((32, 32), (1, 4))
    forward = plan_pencil_fft(
        chunks, "float64", [Transform("fft", 0, 32), Transform("rfft", 1, 32)]
    )
    assert axes(forward) == [[1], [0]]
    assert forward.output_chunks == grid((32, 17), (1, 4))
    backward = plan_pencil_fft(
        forward.output_chunks, "complex128", [Transform("ifft", 0, 32), Transform("irfft", 1, 32)]
    )
    assert axes(backward) == [[0], [1]]
    assert (backward.output_dtype, backward.output_chunks) == ("float64", grid((32, 32), (4, 1)))


def test_crop_comes_before_the_first_exchange_and_pad_after_the_last() -> None:
    chunks = grid((64, 64), (8, 1))
    plan = plan_pencil_fft(chunks, "complex128", [Transform("fft", 0, 16), Transform("fft", 1, 64)])
    assert plan.stages[0].chunks == ((8, 8), (64,))
    assert [exchange.nbytes for exchange in moving(plan)] == [16 * 64 * 16]

    batch = grid((64, 64, 64), (8, 8, 1))
    padded = [Transform("fft", 1, 64), Transform("fft", 2, 256)]
    plan = plan_pencil_fft(batch, "complex128", padded)
    assert axes(plan) == [[1, 2]]
    assert [exchange.nbytes for exchange in moving(plan)] == [64**3 * 16]
    assert plan.moved(64) == pytest.approx(64**3 * 16 * 7 / 8)  # cuts of the first axis stay


def test_output_in_the_chunks_of_the_input() -> None:
    plan = cube(30, (7, 1), "fft fft", output_layout="input")
    assert plan.output_chunks == plan.input_chunks
    assert len(moving(plan)) == 2
    cropped = plan_pencil_fft(
        grid((30, 31), (7, 3)),
        "complex128",
        [Transform("fft", 0, 5), Transform("fft", 1, 31)],
        output_layout="input",
    )
    assert cropped.output_chunks == grid((5, 31), (5, 3))


def test_output_in_given_chunks() -> None:
    wanted = grid((32, 32), (3, 2))
    plan = cube(32, (4, 1), "fft fft", output_chunks=wanted)
    assert plan.output_chunks == wanted
    assert plan.exchanges[-1].target == wanted


def test_crop_of_blocks_in_place_moves_nothing() -> None:
    plan = plan_pencil_fft(((4, 4, 4), (3, 3)), "float32", [Transform("fft", 1, 2)])
    assert plan.stages[0].chunks == ((4, 4, 4), (2,))
    assert moving(plan) == []
    assert plan.moved(3) == 0


def test_one_axis_only_is_one_block() -> None:
    plan = plan_pencil_fft(((4, 4, 3),), "float32", [Transform("fft", 0, 11)])
    assert plan.stages[0].chunks == ((11,),)


def test_flops() -> None:
    assert cube(64, (8, 1), "fft fft").flops == 2 * 64 * 5 * 64 * 6
    assert cube(64, (1, 8), "rfft").flops == 64 * 5 * 64 * 6 / 2
    assert cube(64, (1, 8), "dst1").flops == 64 * 5 * 64 * 6 / 2


@pytest.mark.parametrize("dtype", [*DTYPES, "int8", "uint64", "longdouble", "clongdouble"])
def test_dtype_is_that_of_numpy(dtype: str) -> None:
    real = [] if dtype.startswith("c") else TO_HALF_COMPLEX
    for kind in ("fft", "ifft", "irfft", "hfft", *real):
        expected = getattr(np.fft, kind)(np.ones(4, dtype)).dtype
        assert Transform(kind, 0, 4).output_dtype(np.dtype(dtype).name) == expected
    for kind in TRIGONOMETRIC:
        expected = getattr(scipy.fft, kind[:-1])(np.ones(4, dtype)).dtype
        assert Transform(kind, 0, 4).output_dtype(np.dtype(dtype).name) == expected
