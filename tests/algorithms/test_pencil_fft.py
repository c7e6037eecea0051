"""The plan of a transform: what is local, what moves, and that it is the least."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
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


def test_output_in_given_chunks() -> None:
    wanted = grid((32, 32), (3, 2))
    plan = cube(32, (4, 1), "fft fft", output_chunks=wanted)
    assert plan.output_chunks == wanted
    assert plan.exchanges[-1].target == wanted


def test_flops() -> None:
    assert cube(64, (8, 1), "fft fft").flops == 2 * 64 * 5 * 64 * 6
    assert cube(64, (1, 8), "rfft").flops == 64 * 5 * 64 * 6 / 2
    assert cube(64, (1, 8), "dst1").flops == 64 * 5 * 64 * 6 / 2
