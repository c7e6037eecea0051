"""Blocks that overlap, without a cluster: bit for bit what plain Dask makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from tests.support.explained import said
from tests.support.profiles import examples

ALWAYS = {"on_error": "raise", "when": "always"}
DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64"]
NAMES = ["reflect", "periodic", "nearest", "none"]
A = np.random.default_rng(4).random((24, 21))
X = da.from_array(A, chunks=(6, 7))


@pytest.fixture
def enabled() -> Iterator[dgpu.Enabled]:
    with dgpu.enable(local_ranks=3, **ALWAYS) as state:
        yield state


def plain(z: da.Array) -> Any:
    with dask.config.set(array_optimize=da.optimize):
        return z.compute(scheduler="sync")


def same(z: da.Array) -> Any:
    """Compare a result with plain Dask's, bit for bit."""
    with np.errstate(all="ignore"):
        value, expected = z.compute(scheduler="sync"), plain(z)
    assert (value.dtype, value.shape) == (expected.dtype, expected.shape)
    assert value.tobytes() == expected.tobytes()
    return value


def numbered(block: Any, *others: Any) -> Any:
    """Mix what a block has with where it is in it."""
    for other in others:
        block = block + other
    return block + np.arange(block.size).reshape(block.shape).astype(block.dtype)


def shifted(block: Any, *others: Any) -> Any:
    for axis in range(block.ndim):
        block = block + np.roll(block, 1, axis)
    return sum(others, block)


def summed(block: Any, *others: Any) -> Any:
    """Add the block's sum, whose last bits are those of its order in memory."""
    total = sum((other.sum(dtype=block.dtype) for other in others), block.sum(dtype=block.dtype))
    return block + total


FUNCTIONS: list[Callable[..., Any]] = [numbered, shifted, summed]


@st.composite
def cuts(draw: Any, length: int) -> tuple[int, ...]:
    edges = sorted(draw(st.sets(st.integers(1, max(1, length - 1)), max_size=4)) - {length})
    return tuple(hi - lo for lo, hi in pairwise([0, *edges, length]))


@st.composite
def arrays(draw: Any, shape: tuple[int, ...], dtype: str) -> da.Array:
    seed = draw(st.integers(0, 9))
    values = (np.random.default_rng(seed).random(shape) * 9).astype(dtype)
    return da.from_array(values, chunks=tuple(draw(cuts(n)) for n in shape))


@st.composite
def halos(draw: Any, shape: tuple[int, ...]) -> tuple[dict[int, Any], dict[int, Any]]:
    """Depth and boundary, such that Dask takes them."""
    depth: dict[int, Any] = {}
    boundary: dict[int, Any] = {}
    for axis, length in enumerate(shape):
        kinds = st.sampled_from([*NAMES, 0, 2, 1.5, True])
        boundary[axis] = draw(kinds)
        most = min(4, length)
        depth[axis] = draw(st.integers(0, most))
        if boundary[axis] == "none" and draw(st.booleans()):
            depth[axis] = (depth[axis], draw(st.integers(0, most)))
    return depth, boundary


shapes = st.lists(st.sampled_from([1, 2, 5, 7, 11]), min_size=1, max_size=3).map(tuple)


@examples(150)
@given(st.data())
def test_any_overlap(data: st.DataObject) -> None:
    shape, dtype = data.draw(shapes), data.draw(st.sampled_from(DTYPES))
    z = data.draw(arrays(shape, dtype))
    steps, overlaps = data.draw(st.integers(1, 3)), 0
    for step in range(steps):
        depth, boundary = data.draw(halos(shape))
        overlaps += any(each != 0 for each in depth.values())  # (0, 0) is one for Dask
        function = data.draw(st.sampled_from(FUNCTIONS))
        trim = step < steps - 1 or data.draw(st.booleans())
        z = da.map_overlap(
            function, z, depth=depth, boundary=boundary, trim=trim, dtype=dtype, meta=z._meta
        )
    with dgpu.enable(local_ranks=data.draw(st.integers(1, 7)), **ALWAYS):
        explanation = dgpu.explain(z)
        found = [each.operation for each in explanation.operations]
        assert found.count("overlap") == overlaps
        assert not explanation.declined
        same(z)
        if trim:
            part = tuple(
                slice(*sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2)))) for n in shape
            )
            same(z[part])


@examples(60)
@given(st.data())
def test_several_arrays(data: st.DataObject) -> None:
    """Of as many axes or fewer, each with a depth of its own: blocks need not be as large."""
    ndim = data.draw(st.integers(1, 3))
    sizes = st.lists(st.integers(3, 5), min_size=1, max_size=3).map(tuple)
    chunks = tuple(data.draw(sizes) for _ in range(ndim))
    operands: list[da.Array] = []
    for first in (0, *(data.draw(st.integers(0, ndim - 1)) for _ in range(2))):
        shape = tuple(map(sum, chunks[first:]))
        values = np.random.default_rng(len(operands)).random(shape)
        operands.append(da.from_array(values, chunks=chunks[first:]))
    z = da.map_overlap(
        summed,
        *operands,
        depth=[data.draw(st.integers(0, 3)) for _ in operands],
        boundary=[data.draw(st.sampled_from([*NAMES, 2.5])) for _ in operands],
        dtype=float,
        meta=operands[0]._meta,
    )
    with dgpu.enable(local_ranks=data.draw(st.integers(1, 7)), **ALWAYS):
        same(z)


def test_different_depths(enabled: dgpu.Enabled, programs: list[Any]) -> None:
    def combined(rows: Any, column: Any) -> Any:
        return rows + column.sum() + column.size

    y = da.from_array(A[0], chunks=7)
    z = da.map_overlap(
        combined, X, y, depth=[1, {0: 3}], boundary=["reflect", "periodic"], dtype=float
    )
    same(z)
    assert len(programs) == 1
    assert collectives(programs).count("overlap") == 2


def collectives(programs: list[Any]) -> list[str]:
    """Return the operations of the only program."""
    (launch,) = programs
    return [node.operation for node in launch.program.nodes if node.operation is not None]


@pytest.mark.parametrize("boundary", [*NAMES, -1.5])
@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
def test_a_loop_is_one_gang(
    boundary: Any, scheduler: str, enabled: dgpu.Enabled, programs: list[Any]
) -> None:
    z = X
    for _ in range(6):
        z = z + 0.5 * da.map_overlap(numbered, z, depth=1, boundary=boundary, dtype=float)
    with dask.config.set(scheduler=scheduler):
        assert z.compute().tobytes() == plain(z).tobytes()
    assert collectives(programs) == ["overlap"] * 6
    assert len(programs[0].program.nodes) == 12


def test_overlap_and_trim_by_hand(enabled: dgpu.Enabled, programs: list[Any]) -> None:
    depth, boundary = {0: 2, 1: 3}, {0: "periodic", 1: 4.0}
    wide = da.overlap.overlap(X, depth, boundary)
    same(wide)
    z = da.overlap.trim_internal(wide.map_blocks(np.cos), depth, boundary)
    np.testing.assert_array_equal(same(z), np.cos(A), strict=True)
    same(da.overlap.overlap_internal(X, {0: 1}))
    assert len(programs) == 3


def test_sliding_windows(enabled: dgpu.Enabled, programs: list[Any]) -> None:
    windows = da.lib.stride_tricks.sliding_window_view(X, (3, 5))
    same(windows)
    same(windows.mean(axis=(-1, -2)))
    assert len(programs) == 2


def test_functions_are_called_as_dask_calls_them(enabled: dgpu.Enabled) -> None:
    def described(block: Any, scale: float, block_info: Any = None, block_id: Any = None) -> Any:
        where = block_info[0]["chunk-location"]
        assert where == block_id
        assert block.flags.c_contiguous
        assert block.flags.writeable
        block[...] += scale * sum(where)
        return block

    z = X.map_overlap(described, depth=1, boundary="nearest", dtype=float, scale=3.0)
    value = same(z)
    assert not np.array_equal(value, A)


def test_new_and_dropped_axes(enabled: dgpu.Enabled, programs: list[Any]) -> None:
    options = {"depth": {0: 2}, "boundary": "reflect", "dtype": float}
    same(X.map_overlap(lambda b: b[..., None], **options, new_axis=2, chunks=(*X.chunks, (1,))))
    whole = X.rechunk((6, 21))
    same(whole.map_overlap(lambda b: b.sum(axis=1), **options, drop_axis=1, chunks=(6,)))
    assert len(programs) == 2


@pytest.mark.parametrize("value", [np.nan, -0.0, np.inf, 1e300])
def test_unusual_constants(value: float, enabled: dgpu.Enabled, programs: list[Any]) -> None:
    same(da.overlap.overlap(X, 2, value))
    assert len(programs) == 1


def test_constants_that_the_dtype_has_not(enabled: dgpu.Enabled, programs: list[Any]) -> None:
    x = da.from_array(np.arange(24, dtype="int16"), chunks=6)
    z = da.overlap.overlap(x, 1, np.nan)
    with pytest.warns(RuntimeWarning, match="invalid value"):
        value, expected = z.compute(scheduler="sync"), plain(z)
    np.testing.assert_array_equal(value, expected, strict=True)
    same(da.overlap.overlap(x, 1, 2.75))  # it is cut to 2
    assert len(programs) == 2


@pytest.mark.parametrize("shape", [(0, 6), (6, 0, 2)])
def test_empty_arrays(shape: tuple[int, ...], enabled: dgpu.Enabled) -> None:
    axis = shape.index(6)
    x = da.zeros(shape, chunks=3)
    for boundary in (*NAMES, 1.0):
        same(x.map_overlap(numbered, depth={axis: 2}, boundary=boundary, dtype=float))


def test_a_part_computes_what_it_needs(enabled: dgpu.Enabled, programs: list[Any]) -> None:
    x = da.from_array(np.arange(64.0), chunks=4)
    z = x
    for _ in range(3):
        z = z.map_overlap(shifted, depth=1, boundary="none", dtype=float)
    same(z[:2])
    (launch,) = programs
    made = [len(value.indices()) for value in launch.program.values]
    assert made == [4, 3, 3, 2, 2, 1, 1, 1]


def test_two_loops_that_share_steps(enabled: dgpu.Enabled, programs: list[Any]) -> None:
    first = X.map_overlap(shifted, depth=1, boundary="nearest", dtype=float)
    both = [
        first.map_overlap(f, depth=d, boundary="nearest", dtype=float)
        for f, d in ((numbered, 1), (shifted, 2), (shifted, 3))
    ]
    values = dask.compute(*both, scheduler="sync")
    for value, z in zip(values, both, strict=True):
        assert value.tobytes() == plain(z).tobytes()
    assert len(collectives(programs)) == 4


def test_without_regions(programs: list[Any]) -> None:
    z = X
    for _ in range(3):
        z = z.map_overlap(shifted, depth=1, boundary=0, dtype=float)
    with dgpu.enable(local_ranks=2, **ALWAYS, regions=False):
        same(z)
    assert len(programs) == 3


def test_errors_of_the_call_are_dasks(enabled: dgpu.Enabled) -> None:
    with pytest.raises(ValueError, match="larger than your array"):
        X.map_overlap(shifted, depth=30, boundary="reflect", dtype=float)
    with pytest.raises(NotImplementedError, match="Asymmetric overlap"):
        X.map_overlap(shifted, depth={0: (1, 2)}, boundary="reflect", dtype=float)


def loop(x: da.Array, steps: int, boundary: Any = "none") -> da.Array:
    for _ in range(steps):
        x = x.map_overlap(shifted, depth=1, boundary=boundary, dtype=float, meta=x._meta)
    return x


def test_explained(enabled: dgpu.Enabled) -> None:
    z = X.map_overlap(shifted, depth={0: 1, 1: 2}, boundary={0: 0, 1: "none"}, dtype=float)
    explanation = dgpu.explain(z)
    (piece,) = explanation.to_dict()["rewritten"]
    assert (piece["depth"], piece["boundary"]) == (((1, 1), (2, 2)), (0.0, None))
    assert (piece["shape"], piece["chunks_before"]) == ((32, 29), X.chunks)
    text = said(explanation)
    assert "(24, 21) float64 in 12 blocks, halo of depth 1, 2, boundary 0.0, none" in text
    assert "ghost cells in" in text


def test_a_loop_is_explained_in_few_rows(enabled: dgpu.Enabled) -> None:
    explanation = dgpu.explain(loop(X, 50) + 1)
    names = [
        line.split("  ")[0].strip() for line in str(explanation).replace("\n  ", "\n").splitlines()
    ]
    loops = ["49 x overlap", "49 x shifted", "49 x trim overlap"]
    assert [name for name in names if name[:1].isdigit()] == loops
    assert len(explanation.operations) == 3 * 50 + 1
    assert str(explanation).count("overlap") < 10
    assert " x overlap" not in str(dgpu.explain(loop(X, 2)))
