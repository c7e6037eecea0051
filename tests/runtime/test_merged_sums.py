"""Parts of sums are merged on each rank: values, and what travels."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from graph_opt.model.layout import dealt, dtype_named
from tests.support.exact import FAMILIES, exact, family, to_nearest, within_bound
from tests.support.profiles import examples
from tests.support.programs import Ran, joined, loaded, run_at, scattered

METHODS: tuple[Any, ...] = ("compensated", "reproducible")
WORD = 8


def ran(z: da.Array, ranks: int, owners: Any = None) -> tuple[Any, Ran, Any]:
    """Compute an array by ranks that have its only input; also return what they did, and places."""
    launch, staged = loaded(z, ranks)
    program = launch.program
    places = scattered(program, ranks, 1) if owners is None else (owners,)
    found = run_at(launch, places, staged, ranks)
    return joined(found.blocks, z.__dask_keys__()), found, places


def stored(values: Any, chunks: Any) -> da.Array:
    return da.from_array(values, chunks).persist(scheduler="sync")


@st.composite
def problems(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    shape = draw(st.lists(st.sampled_from([2, 5, 7, 11]), min_size=1, max_size=3))
    chunks = [draw(st.integers(1, length // 2)) for length in shape]
    return tuple(shape), tuple(chunks), draw(st.integers(1, 5))


@examples(30)
@given(problem=problems(), data=st.data(), keepdims=st.booleans(), wide=st.booleans())
def test_any_chunks_axes_and_ranks(
    problem: tuple[Any, Any, int], data: st.DataObject, keepdims: bool, wide: bool
) -> None:
    shape, chunks, ranks = problem
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))
    array = family("wide" if wide else "condition 1e16", int(np.prod(shape)), "float64")
    array = array.reshape(shape)
    lines = np.moveaxis(array, axes, range(-len(axes), 0))
    lines = lines.reshape(-1, *(shape[axis] for axis in axes))
    for method in METHODS:
        found, _, _ = ran(dgpu.sum(stored(array, chunks), axes, keepdims, method=method), ranks)
        for value, line in zip(np.reshape(found, -1), lines, strict=True):
            if method == "reproducible":
                assert value == to_nearest(exact(line), "float64")
            else:
                assert within_bound(value, line, np.finfo(float).eps)


@examples(50)
@given(problem=problems(), seed=st.integers(0, 2**32 - 1), name=st.sampled_from(FAMILIES))
def test_same_bits_for_any_chunks_ranks_and_order(
    problem: tuple[Any, Any, int], seed: int, name: str
) -> None:
    shape, chunks, ranks = problem
    values = family(name, int(np.prod(shape)), "float64")
    array = np.random.default_rng(seed).permutation(values).reshape(shape)
    found, _, _ = ran(dgpu.sum(stored(array, chunks), method="reproducible"), ranks)
    assert found.tobytes() == to_nearest(exact(values), "float64").tobytes()


@pytest.mark.parametrize("rows", [4, 100])
@pytest.mark.parametrize("split_every", [None, 2])
@pytest.mark.parametrize("where", ["in rows", "dealt", "scattered"])
def test_each_rank_sends_one_part_for_a_block_of_the_result(
    rows: int, split_every: Any, where: str
) -> None:
    """Also if the parts are added by a tree, whose tasks none of the ranks would need."""
    ranks, columns, width = 4, 4, 5000
    x = da.ones((rows, columns * width), chunks=(1, width), dtype="float32")
    x = x.persist(scheduler="sync")
    with dgpu.enable(sum_method="compensated", on_error="raise"):
        z = x.sum(axis=0, split_every=split_every)
    blocks = rows * columns
    owners = {
        "in rows": dealt(blocks, ranks),
        "dealt": tuple(at % (ranks + 1) % ranks for at in range(blocks)),
        "scattered": tuple(np.random.default_rng(0).integers(ranks, size=blocks).tolist()),
    }[where]
    found, did, _ = ran(z, ranks, owners)
    assert (found == rows).all()
    holders = [{*owners[column::columns]} for column in range(columns)]
    messages = sum(sum(ledger.messages_sent.values()) for ledger in did.ledgers)
    assert messages == sum(len(each) - 1 for each in holders)
    assert did.sent == messages * WORD * (2 * width + 1)  # pairs, and the count
    if where == "in rows":
        assert {len(part) for part in did.parts} == {1}
        assert len({ledger.bytes_received for ledger in did.ledgers}) == 1


def test_a_carry_beyond_the_limbs_of_all_terms_is_kept() -> None:
    top = 2.0 ** (-1074 + 32 * 34) * (2.0**32 - 2**-20)  # fills the uppermost limb
    x = stored(np.full((4, 70_000), top), (1, 70_000))
    found, _, _ = ran(dgpu.sum(x, 0, method="reproducible"), 4, range(4))
    assert {*found.tolist()} == {4 * top}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "complex64", "complex128"])
def test_other_dtypes(method: Any, dtype: str) -> None:
    whole = np.arange(60).reshape(12, 5)
    array = (whole * (1 + 1j if dtype[0] == "c" else 1)).astype(dtype_named(dtype))
    found, _, _ = ran(dgpu.mean(stored(array, (2, 5)), 0, True, method=method), 3)
    wide = array.astype("complex128" if dtype[0] == "c" else "float64")
    np.testing.assert_array_equal(found, wide.mean(0, keepdims=True).astype(array.dtype))


@pytest.mark.parametrize("method", METHODS)
def test_many_parts_on_a_rank(method: Any) -> None:
    array = family("condition 1e16", 400, "float64").reshape(200, 2)
    found, did, _ = ran(dgpu.sum(stored(array, (1, 2)), 0, method=method), 2)
    assert all(within_bound(*pair, 2**-52) for pair in zip(found, array.T, strict=True))
    assert sum(ledger.messages_sent.total() for ledger in did.ledgers) == 1


@pytest.mark.parametrize("method", METHODS)
def test_all_who_read_a_small_sum_have_the_same_bits(method: Any) -> None:
    array = family("condition 1e16", 600, "float64").reshape(60, 10)
    x = stored(array, (5, 2))
    z = dgpu.sum(x, method=method) + x * 0
    found, did, _ = ran(z, 3)
    assert len({*found.reshape(-1).tolist()}) == 1
    assert within_bound(found[0, 0], array, 2**-52)
    assert [ledger.messages_sent.total() for ledger in did.ledgers] == [2, 2, 2]


@pytest.mark.parametrize("method", METHODS)
def test_wanted_blocks_alone(method: Any) -> None:
    array = np.random.default_rng(4).random((9, 8))
    part = dgpu.sum(stored(array, (3, 2)), 0, method=method)[:2]
    found, _, _ = ran(part, 2)
    np.testing.assert_allclose(found, array[:, :2].sum(0), rtol=1e-15)


@pytest.mark.parametrize("method", METHODS)
def test_what_is_not_finite(method: Any) -> None:
    array = np.ones((4, 3))
    array[0, 0], array[3, 0], array[1, 1], array[2, 2] = np.inf, -np.inf, -np.inf, np.nan
    found, _, _ = ran(dgpu.sum(stored(array, (1, 3)), 0, method=method), 3, (0, 1, 2, 0))
    np.testing.assert_array_equal(found, [np.nan, -np.inf, np.nan])


@pytest.mark.parametrize("method", METHODS)
def test_sums_that_share_their_parts(method: Any) -> None:
    array = family("condition 1e16", 60, "float64").reshape(12, 5)
    x = stored(array, (2, 5))
    z = dgpu.sum(x, 0, method=method) - dgpu.sum(x, 0, True, method=method)
    assert (ran(z, 3)[0] == 0).all()
