"""Slices of blocks are taken by the kernel that reads them, not by tasks of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from graph_opt.model.expression import Expression
from tests.support.profiles import examples

Program = Callable[..., Any]
RNG = np.random.default_rng(11)
X = RNG.normal(size=(8, 6))
Y = RNG.normal(size=(8, 6))
COLOURS = RNG.normal(size=(8, 6, 3))
SYNC = {"scheduler": "synchronous"}

PROGRAMS: dict[str, Program] = {
    "differences": lambda x, y, z: (x[:, 1:] - x[:, :-1]) * 2,
    "one function": lambda x, y, z: x[:, 1:] - y[:, :-1],
    "steps": lambda x, y, z: x[:, ::2] * y[:, 1::2] + 1,
    "backwards": lambda x, y, z: x[:, ::-1] * y - x[:, ::-2].sum(axis=1)[:, None],
    "shorter blocks": lambda x, y, z: x[1:-1] * 2 + y[1:-1],
    "an integer": lambda x, y, z: z[..., 0] * y,
    "integers": lambda x, y, z: z[:, 2, 1] * z[:, -1, 0] + z[:, 0, 1],
    "new axes": lambda x, y, z: x[:, None, 1:] + y[:, None, 1:],
    "transposes": lambda x, y, z: x[:, 1:].T * y.T[1:],
    "views of slices": lambda x, y, z: (x * 2)[:, 1:][:, None] * y[:, None, 1:],
    "rows": lambda x, y, z: x[:, 1:] - x[:, 1:].mean(axis=1, keepdims=True),
    "columns": lambda x, y, z: x[::2].sum(axis=1),
}
"""Of arrays of several blocks of whole rows."""

MOVED: dict[str, Program] = {
    "backwards": lambda x, y, z: x[::-1] * y - 1,
    "the last blocks": lambda x, y, z: x[4:, 3:] * 2 + y[:4, :3],
    "a row": lambda x, y, z: z[5] * 2 + z[0],
    "smaller chunks": lambda x, y, z: x.rechunk((2, 6)) - y.rechunk((2, 6))[::-1] * 2,
}
"""Some read blocks with other numbers than theirs, if all axes have several."""


def arrays(chunks: tuple[int, ...]) -> list[da.Array]:
    known = zip((X, Y, COLOURS), (chunks, chunks, (*chunks, 3)), strict=True)
    return [da.from_array(values, chunks=size) for values, size in known]


def tasks(array: da.Array) -> int:
    return len(dask.base.optimize(array)[0].dask)


def sources(array: da.Array) -> int:
    """Return the number of blocks in memory that an array reads."""
    graph = dask.base.optimize(array)[0].dask
    return sum(not task.dependencies for task in dict(graph).values())


def check_equal(found: Any, expected: Any) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_slices_are_taken_in_one_call_a_block(
    evaluated: list[Expression], program: Program
) -> None:
    array, expected = program(*arrays((4, 6))), program(X, Y, COLOURS)
    before = tasks(array)
    with dgpu.enable(on_error="raise"):
        check_close(array.compute(**SYNC), expected)
        assert len(evaluated) == array.npartitions
        assert tasks(array) == array.npartitions + sources(array) <= before


@pytest.mark.parametrize("program", MOVED)
@pytest.mark.parametrize("ranks", [0, 3])
def test_blocks_with_other_numbers_are_sliced_before(program: str, ranks: int) -> None:
    array = MOVED[program](*arrays((4, 3)))
    expected = array.compute(**SYNC)  # by plain Dask
    before, when = tasks(array), "always" if ranks else "cheaper"
    with dgpu.enable(local_ranks=max(1, ranks), when=when, on_error="raise"):
        check_equal(array.compute(**SYNC), expected)
        assert ranks or tasks(array) <= before


def check_close(found: Any, expected: Any) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_reductions_take_slices_along(evaluated: list[Expression]) -> None:
    x, y, _ = arrays((8, 3))
    with dgpu.enable(on_error="raise"):
        for array in (x[::2].sum(axis=0), (x[1:] * y[:-1]).max(axis=0)):
            evaluated.clear()
            array.compute(**SYNC)
            assert len(evaluated) == array.npartitions
            assert tasks(array) == array.npartitions + sources(array)
        check_close(x[::2].sum(axis=0).compute(**SYNC), X[::2].sum(axis=0))
        assert (x[1:] * y[:-1]).argmax().compute(**SYNC) == (X[1:] * Y[:-1]).argmax()


def test_requested_and_shared_slices_stay_tasks() -> None:
    x, _, _ = arrays((4, 6))
    cut = x[:, 1:]
    results = cut, cut * 2 + 1, cut.map_blocks(np.sort) * 2
    expected = X[:, 1:], X[:, 1:] * 2 + 1, np.sort(X[:, 1:]) * 2
    with dgpu.enable(on_error="raise"):
        found = dask.base.compute(*results, **SYNC)
    for one, other in zip(found, expected, strict=True):
        check_equal(one, other)


def test_neighbours_in_several_blocks_need_fewer_tasks() -> None:
    x, _, _ = arrays((4, 3))
    array = (x[:, 1:] - x[:, :-1]) * 2
    before = tasks(array)
    with dgpu.enable(on_error="raise"):
        check_equal(array.compute(**SYNC), (X[:, 1:] - X[:, :-1]) * 2)
        assert tasks(array) < before


def test_thin_slices_of_several_blocks_travel_alone() -> None:
    x, y, z = arrays((4, 6))
    array = z[..., 0] * z[..., 2] + x[:, :1] * y[:, 1:2]
    with dgpu.enable(on_error="raise"):
        check_equal(array.compute(**SYNC), COLOURS[..., 0] * COLOURS[..., 2] + X[:, :1] * Y[:, 1:2])
        assert tasks(array) > array.npartitions + sources(array)


def test_a_thin_slice_does_not_keep_its_block() -> None:
    _, y, _ = arrays((4, 6))
    z = da.from_array(COLOURS, chunks=(4, 6, 3))
    array = z[..., 0] * 2 - (y * 2 + 1).mean()  # cut at once, before the mean is known
    with dgpu.enable(on_error="raise"):
        graph = dict(dask.base.optimize(array)[0].dask)
        last = [graph[key] for key in dask.core.flatten(array.__dask_keys__())]
        assert not any(z.name in key for task in last for key in task.dependencies)
        check_close(array.compute(**SYNC), COLOURS[..., 0] * 2 - (Y * 2 + 1).mean())


def test_results_do_not_keep_blocks() -> None:
    z = da.from_array(COLOURS + 1j, chunks=(4, 6, 3))
    with dgpu.enable(on_error="raise"):
        optimized = dask.base.optimize(z[..., 1].real)[0]
        (block, _) = optimized.to_delayed().ravel()
        found = block.compute(**SYNC)
    check_equal(found, COLOURS[:4, :, 1])
    assert found.base is None


def test_other_blocks_run_dasks_own_tasks(evaluated: list[Expression]) -> None:
    x, _, _ = arrays((4, 6))
    masked = x.map_blocks(lambda block: np.ma.masked_greater(block, 0.5), dtype=x.dtype)
    array = masked[:, 1:] * 2 + masked[:, :-1]
    wanted = np.ma.masked_greater(X, 0.5)
    with dgpu.enable(on_error="raise"):
        optimized = dask.base.optimize(array)[0]
        found = [block.compute(**SYNC) for block in optimized.to_delayed().ravel()]
    assert evaluated == []
    expected = wanted[:, 1:] * 2 + wanted[:, :-1]
    for one, other in zip(found, (expected[:4], expected[4:]), strict=True):
        np.testing.assert_array_equal(one.mask, other.mask)
        np.testing.assert_array_equal(one.filled(0), other.filled(0))


@st.composite
def indices(draw: st.DrawFn, shape: Sequence[int]) -> tuple[Any, ...]:
    """Draw a basic index that keeps an element at least."""
    found: list[Any] = []
    for length in shape:
        kind = draw(st.sampled_from(("slice", "slice", "whole", "integer", "new")))
        if kind == "new":
            found.append(None)
        if kind == "integer":
            found.append(draw(st.integers(-length, length - 1)))
        elif kind == "slice":
            start = draw(st.integers(0, length - 1))
            stop = draw(st.integers(start + 1, length))
            step = draw(st.integers(1, 3))
            turned = slice(stop - 1, start - 1 if start else None, -step)
            found.append(turned if draw(st.booleans()) else slice(start, stop, step))
        else:
            found.append(slice(None))
    return tuple(found)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Any, da.Array]:
    """Draw an array of NumPy's, and the same of Dask's in uneven chunks."""
    shape = draw(st.sampled_from([(7,), (5, 6), (3, 4, 5), (1, 5)]))
    values = np.random.default_rng(draw(st.integers(0, 99))).normal(size=shape)
    chunks = tuple(draw(st.integers(1, length)) for length in shape)
    made = draw(st.sampled_from(("data", "work")))
    lazy = da.from_array(values, chunks=chunks)
    return (values, lazy) if made == "data" else (values * 3, lazy * 3)


STEPS: dict[str, Program] = {
    "sum": lambda x, y: x + y,
    "difference": lambda x, y: x - y * 2,
    "turned": lambda x, y: x.T * 2,
    "sine": lambda x, y: np.sin(x),
    "column": lambda x, y: x[..., None] * 2,
    "larger": lambda x, y: np.maximum(x, y),
}


@examples(100)
@given(data=st.data(), ranks=st.sampled_from([0, 0, 3]))
def test_random_slices_have_the_bits_of_numpy(data: st.DataObject, ranks: int) -> None:
    values = [data.draw(pairs())]
    for _ in range(data.draw(st.integers(2, 8))):
        known, lazy = values[data.draw(st.integers(0, len(values) - 1))]
        other, lazy_other = values[data.draw(st.integers(0, len(values) - 1))]
        if data.draw(st.booleans()) and known.ndim:
            index = data.draw(indices(known.shape))
            sliced = lazy[index]
            # plain Dask cannot broadcast an axis of chunks (1, 0)
            if all(len(sizes) == 1 or sum(sizes) > 1 for sizes in sliced.chunks):
                values.append((known[index], sliced))
            continue
        step = STEPS[data.draw(st.sampled_from(sorted(STEPS)))]
        try:
            made = step(known, other)
        except ValueError:  # shapes do not broadcast
            continue
        if made.ndim <= 4 and made.size < 2000:
            values.append((made, step(lazy, lazy_other)))
    known, lazy = values[-1]
    before = tasks(lazy)
    when = "always" if ranks else "cheaper"
    with dgpu.enable(local_ranks=max(1, ranks), when=when, on_error="raise"):
        found = np.asarray(lazy.compute(**SYNC))
        assert ranks or tasks(lazy) <= before
    np.testing.assert_array_equal(found, known)


@pytest.mark.gpu
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_blocks_on_gpus_are_cut_as_views(evaluated: list[Expression], program: Program) -> None:
    import cupy

    values = [cupy.asarray(each) for each in (X, Y, COLOURS)]
    lazy = (da.from_array(x, chunks=(4, 6, 3)[: x.ndim], asarray=False) for x in values)
    array = program(*(x.persist(**SYNC) for x in lazy))  # else they depend on the whole arrays
    with dgpu.enable(on_error="raise"):
        found = array.compute(**SYNC)
    assert len(evaluated) == array.npartitions
    expected = program(*arrays((4, 6))).compute(**SYNC)
    np.testing.assert_allclose(found.get(), expected, rtol=1e-14)
