"""Transforms on ranks against NumPy, and their cost against their plan."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.algorithms.pencil_fft.plan import plan_pencil_fft
from dask_dgpu.algorithms.pencil_fft.rank import (
    RankedPencil,
    cost,
    peak,
    pencil_fft_rank,
    plan_on_ranks,
)
from dask_dgpu.algorithms.redistribute.plan import traffic
from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import HostDevice
from dask_dgpu.kernels.fft import Transform
from graph_opt.model.cost import CUDA, HOST
from graph_opt.model.layout import Layout, cuts_of, dealt
from tests.algorithms.test_pencil_fft import Chunks, blocks, even, problems, reference
from tests.support.memory import assert_peak
from tests.support.profiles import examples
from tests.support.recording import Ledger, RecordingComm

Array = Any
MIB = 1 << 20


def layout(chunks: Chunks, owners: tuple[int, ...]) -> Layout:
    return Layout(tuple(map(cuts_of, chunks)), owners)


def in_order(size: int) -> Callable[[Layout, Chunks], Layout]:
    return lambda _, chunks: layout(chunks, dealt(blocks(chunks), size))


def cut(array: Array, where: Layout) -> dict[tuple[int, ...], Array]:
    return {
        index: array[
            tuple(slice(c[at], c[at + 1]) for c, at in zip(where.cuts, index, strict=True))
        ]
        for index in where.indices()
    }


def whole(parts: dict[tuple[int, ...], Array], where: Layout, dtype: str) -> Array:
    result = np.empty(where.shape, dtype)
    for index, view in cut(result, where).items():
        assert view.shape == parts[index].shape
        assert parts[index].dtype == result.dtype
        view[...] = parts[index]
    return result


def run(ranked: RankedPencil, array: Array) -> tuple[dict[tuple[int, ...], Array], list[Ledger]]:
    every = cut(array, ranked.source)

    def rank_program(comm: Comm) -> tuple[dict[tuple[int, ...], Array], Ledger]:
        recording = RecordingComm(comm)
        mine = {index: every[index] for index in ranked.source.owned(comm.rank)}
        steps: list[tuple[int, int]] = []
        made = pencil_fft_rank(
            ranked, recording, HostDevice(), mine, lambda *step: steps.append(step)
        )
        assert set(made) == set(ranked.output.owned(comm.rank))
        assert [done for done, _ in steps] == list(range(1, ranked.steps + 1))
        assert {total for _, total in steps} <= {ranked.steps}
        return made, recording.ledger

    results = run_local(ranked.size, rank_program)
    return {index: part for parts, _ in results for index, part in parts.items()}, [
        ledger for _, ledger in results
    ]


def random(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        values = values + 1j * rng.standard_normal(shape)
    return (values > 0) if dtype == "bool" else (9 * values).astype(dtype)


@examples(200)
@given(data=st.data(), problem=problems(), size=st.integers(1, 7))
def test_equals_numpy(data: st.DataObject, problem: Any, size: int) -> None:
    chunks, dtype, transforms = problem
    plan = plan_pencil_fft(
        chunks, dtype, transforms, output_layout=data.draw(st.sampled_from(["any", "input"]))
    )
    count = blocks(chunks)
    owners = data.draw(
        st.just(dealt(count, size))
        | st.lists(st.integers(0, size - 1), min_size=count, max_size=count).map(tuple)
    )
    source = layout(chunks, owners)
    spent, roomy = data.draw(st.booleans()), data.draw(st.booleans())
    ranked = plan_on_ranks(plan, source, size, HOST, in_order(size), spent=spent, roomy=roomy)
    array = random(source.shape, dtype, data.draw(st.integers(0, 9)))
    before = array.copy()
    parts, ledgers = run(ranked, array)
    np.testing.assert_array_equal(array, before)  # the input is somebody else's
    result = whole(parts, ranked.output, plan.output_dtype)
    assert result.dtype == reference(array, transforms).dtype
    # in double precision: of float16 NumPy rounds the factor of the norm to half precision
    wanted = reference(array.astype(np.result_type(array.dtype, np.float64)), transforms)
    lengths = math.prod(each.n for each in transforms)
    # a plan may begin with irfft: of float16 it is float16, though a later step makes float32
    steps = [reference(array, (each,)).dtype for each in transforms]
    eps = max(float(np.finfo(each).eps) for each in (result.dtype, *steps))
    bound = 8 * eps * max(1.0, math.log2(max(2, lengths)))
    wide = result.astype(wanted.dtype)  # squares of float16 overflow
    assert np.linalg.norm(wide - wanted) <= bound * np.linalg.norm(wanted)
    for rank, ledger in enumerate(ledgers):
        moves = [traffic(move) for move in ranked.moves if move is not None]
        sent = sum(sum(table[rank]) - table[rank][rank] for table in moves)
        assert ledger.bytes_sent == sent
    assert cost(ranked, HOST) >= 0


@pytest.mark.parametrize("size", [1, 2, 4, 7])
def test_a_slab_moves_no_more_than_one_transpose(size: int) -> None:
    n = 28 * 4
    chunks = (even(n, 28), (n,))
    plan = plan_pencil_fft(chunks, "complex64", [Transform("fft", 0, n), Transform("fft", 1, n)])
    ranked = plan_on_ranks(plan, layout(chunks, dealt(28, size)), size, HOST, in_order(size))
    _, ledgers = run(ranked, random((n, n), "complex64"))
    least = n * n * 8 * (size - 1) // size**2
    assert [ledger.bytes_sent for ledger in ledgers] == [least] * size


@pytest.mark.parametrize(
    ("shape", "parts", "kinds"),
    [
        ((2048, 1024), (8, 1), ("fft", "fft")),
        ((1024, 2048), (4, 4), ("fft", "fft")),
        ((128, 128, 128), (2, 2, 1), ("fft", "fft", "fft")),
    ],
)
@pytest.mark.parametrize("size", [1, 4])
def test_memory_is_bounded(
    shape: tuple[int, ...], parts: tuple[int, ...], kinds: tuple[str, ...], size: int
) -> None:
    """No axis is gathered: a rank holds three shares and its buffers at most."""
    chunks = tuple(even(n, count) for n, count in zip(shape, parts, strict=True))
    transforms = [Transform(kind, axis, shape[axis]) for axis, kind in enumerate(kinds)]
    plan = plan_pencil_fft(chunks, "complex128", transforms)
    source = layout(chunks, dealt(blocks(chunks), size))
    ranked = plan_on_ranks(plan, source, size, HOST, in_order(size))
    array = random(shape, "complex128")
    share = array.nbytes // size
    assert peak(ranked) <= 3 * share + 64 * MIB
    # all ranks are here; the input, made before, is not counted
    assert_peak(lambda: run(ranked, array), size * (peak(ranked) - share) + MIB)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_rounds_on_fast_links(size: int) -> None:
    """Large arrays go in a few rounds; buffers take a share and 64 MiB at most."""
    n = 32768
    chunks = (even(n, 2 * size), (n,))
    plan = plan_pencil_fft(chunks, "complex64", [Transform("fft", 0, n), Transform("fft", 1, n)])
    source = layout(chunks, dealt(2 * size, size))
    ranked = plan_on_ranks(plan, source, size, CUDA, in_order(size))
    share = n * n * 8 // size
    assert 3 < ranked.steps - 2 < 20
    assert peak(ranked) <= 3 * share + 64 * MIB


@pytest.mark.parametrize("spent", [False, True])
def test_what_is_spent_makes_room_for_buffers(spent: bool) -> None:
    """Where an input need not be kept, later exchanges go in a few rounds too."""
    n, size = 32768, 2
    chunks = (even(n, 4), even(n, 4))
    plan = plan_pencil_fft(chunks, "complex64", [Transform("fft", 0, n), Transform("fft", 1, n)])
    source = layout(chunks, dealt(16, size))
    ranked = plan_on_ranks(plan, source, size, CUDA, in_order(size), spent=spent)
    assert all(ranked.moves[:2])
    assert (ranked.steps - 2 < 20) is spent
    assert peak(ranked) <= 3 * (n * n * 8 // size) + 64 * MIB


@pytest.mark.parametrize("spent", [False, True])
@pytest.mark.parametrize(
    ("shape", "parts"), [((4, 8192, 8192), (4, 1, 1)), ((8192, 8192, 2), (2, 2, 1))]
)
def test_thick_slices_are_bounded_too(
    shape: tuple[int, ...], parts: tuple[int, ...], spent: bool
) -> None:
    """A block that is whole along all its long axes is one slice."""
    chunks = tuple(even(n, count) for n, count in zip(shape, parts, strict=True))
    transforms = [Transform("fft", axis, n) for axis, n in enumerate(shape)]
    source = layout(chunks, dealt(4, 4))
    plan = plan_pencil_fft(chunks, "complex64", transforms, ranks=4)
    ranked = plan_on_ranks(plan, source, 4, HOST, in_order(4), spent=spent)
    assert peak(ranked) <= 3 * (math.prod(shape) * 8 // 4) + 64 * MIB


def keep_small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("redistribute.plan", "pencil_fft.rank"):
        monkeypatch.setattr(import_module(f"dask_dgpu.algorithms.{module}"), "LEAST", MIB // 4)


@pytest.mark.parametrize("spent", [False, True])
@pytest.mark.parametrize("kind", ["fft", "rfft"])
def test_thick_slices_are_transformed_before_they_are_packed(
    kind: str, spent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_small_buffers(monkeypatch)
    shape, size = (4, 384, 384), 4
    chunks = ((1,) * 4, (384,), (384,))
    transforms = [Transform(kind, 2, 384), Transform("fft", 1, 384), Transform("fft", 0, 4)]
    plan = plan_pencil_fft(chunks, "float64" if kind == "rfft" else "complex128", transforms)
    source = layout(chunks, dealt(4, size))
    ranked = plan_on_ranks(plan, source, size, HOST, in_order(size), spent=spent)
    (move,) = (each for each in ranked.moves if each is not None)
    assert not move.transformed
    assert move.rounds > 2
    array = random(shape, plan.dtype)
    # all ranks are here; the input, made before, is not counted
    most = size * peak(ranked) - (0 if spent else array.nbytes) + MIB
    parts, ledgers = assert_peak(lambda: run(ranked, array), most)
    result = whole(parts, ranked.output, plan.output_dtype)
    np.testing.assert_allclose(result, reference(array, transforms), rtol=1e-11, atol=1e-9)
    sent = [sum(row) - row[rank] for rank, row in enumerate(traffic(move))]
    assert [ledger.bytes_sent for ledger in ledgers] == sent


@pytest.mark.parametrize(("shape", "parts"), [((2048, 1024), (8, 1)), ((256, 64, 64), (8, 1, 1))])
@pytest.mark.parametrize("spent", [False, True])
def test_the_last_stage_in_slices_needs_a_share_less(
    shape: tuple[int, ...], parts: tuple[int, ...], spent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With little memory its result goes over its input."""
    keep_small_buffers(monkeypatch)
    slices = import_module("dask_dgpu.algorithms.pencil_fft.rank")
    monkeypatch.setattr(slices, "SLICE", MIB // 2)
    size = 2
    chunks = tuple(even(n, count) for n, count in zip(shape, parts, strict=True))
    transforms = [Transform("fft", axis, n) for axis, n in enumerate(shape)]
    plan = plan_pencil_fft(chunks, "complex128", transforms, ranks=size)
    source = layout(chunks, dealt(blocks(chunks), size))
    array = random(shape, "complex128")
    share = array.nbytes // size
    roomy, ranked = (
        plan_on_ranks(plan, source, size, HOST, in_order(size), spent=spent, roomy=roomy)
        for roomy in (True, False)
    )
    assert (roomy.sliced, ranked.sliced) == (False, True)
    assert peak(ranked) <= 2 * share + 2 * MIB
    assert peak(ranked) <= peak(roomy) - (0 if spent else share - 2 * MIB)
    # all ranks are here; the input, made before, is not counted
    most = size * (peak(ranked) - (0 if spent else share)) + MIB
    parts_made, _ = assert_peak(lambda: run(ranked, array), most)
    result = whole(parts_made, ranked.output, plan.output_dtype)
    np.testing.assert_allclose(result, reference(array, transforms), rtol=1e-10, atol=1e-8)


@pytest.mark.parametrize("size", [1, 3])
def test_what_is_spent_is_let_go_of(size: int) -> None:
    chunks = (even(64, 4), even(48, 4))
    plan = plan_pencil_fft(chunks, "complex128", [Transform("fft", 0, 64), Transform("fft", 1, 48)])
    source = layout(chunks, dealt(16, size))
    ranked = plan_on_ranks(plan, source, size, HOST, in_order(size), spent=True)
    array = random((64, 48), "complex128")

    def rank(comm: Comm) -> list[bool]:
        every = cut(array, source)
        mine = {index: every[index].copy() for index in source.owned(comm.rank)}
        alive = [weakref.ref(block) for block in mine.values()]
        seen = []

        def progress(done: int, steps: int) -> None:
            seen.append(any(block() is not None for block in alive))

        pencil_fft_rank(ranked, comm, HostDevice(), mine, progress)
        assert not mine
        return seen

    for seen in run_local(size, rank):
        assert not seen[-1]
