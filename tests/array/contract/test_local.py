"""Contractions without a cluster: one process, ranks as threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from tests.support.profiles import examples

ALWAYS = {"on_error": "raise", "when": "always"}
DTYPES = ["bool", "int8", "uint64", "float16", "float32", "float64", "complex64", "complex128"]


@pytest.fixture(params=[1, 3], ids="ranks={}".format)
def enabled(request: pytest.FixtureRequest) -> Iterator[None]:
    with dgpu.enable(local_ranks=request.param, **ALWAYS):
        yield


def numbers(*shape: int, dtype: str = "float64", seed: int = 0) -> Any:
    """Small integers: exact in every dtype, and so are their contractions."""
    low = 0 if dtype[0] in "bu" else -3
    values = np.random.default_rng(seed).integers(low, 4, shape).astype(dtype)
    return (values * (1 + 1j)).astype(dtype) if dtype[0] == "c" else values


def check(z: da.Array, expected: Any) -> None:
    assert dgpu.explain(z).rewritten
    value = z.compute(scheduler="sync")
    assert value.dtype == z.dtype
    np.testing.assert_array_equal(value, expected)


A, B = numbers(4, 6, 8), numbers(4, 8, 5, seed=1)
M, V = numbers(8, 5, seed=2), numbers(8, seed=3)
X, Y = da.from_array(A, chunks=(1, 3, 5)), da.from_array(B, chunks=(1, 5, 2))
N, U = da.from_array(M, chunks=(5, 2)), da.from_array(V, chunks=5)

CASES: dict[str, Callable[[Any, Any, Any, Any, Any], Any]] = {
    "stacks": lambda xp, x, y, m, v: x @ y,
    "one stack": lambda xp, x, y, m, v: xp.matmul(x, m),
    "one stack, left": lambda xp, x, y, m, v: m.T @ x.transpose(0, 2, 1),
    "vector": lambda xp, x, y, m, v: x @ v,
    "vector left": lambda xp, x, y, m, v: v @ y,
    "outer stacks": lambda xp, x, y, m, v: x[:, None] @ y,
    "gram": lambda xp, x, y, m, v: x @ x.transpose(0, 2, 1),
    "chain": lambda xp, x, y, m, v: x @ y @ m.T @ y,
    "part": lambda xp, x, y, m, v: (x @ y)[1:3, ::2],
    "sum": lambda xp, x, y, m, v: (x * 2 @ (y + 1)).sum(axis=0),
    "tensordot": lambda xp, x, y, m, v: xp.tensordot(x, m, axes=1),
    "tensordot of two": lambda xp, x, y, m, v: xp.tensordot(x, y, axes=([2, 0], [1, 0])),
    "tensordot of all": lambda xp, x, y, m, v: xp.tensordot(x, x, axes=3),
    "einsum": lambda xp, x, y, m, v: xp.einsum("ij,jk->ik", x[0], m),
    "einsum, transposed": lambda xp, x, y, m, v: xp.einsum("ij,jk->ki", x[0], m),
    "einsum, implied": lambda xp, x, y, m, v: xp.einsum("bzc,bca", x, y),
    "einsum, batch last": lambda xp, x, y, m, v: xp.einsum("bqd,bdk->qkb", x, y),
    "einsum, batch between": lambda xp, x, y, m, v: xp.einsum("bqd,bdk->kbq", x, y),
    "einsum of all": lambda xp, x, y, m, v: xp.einsum("abc,abc->", x, x),
    "einsum, rows alone": lambda xp, x, y, m, v: xp.einsum("abc,abc->b", x, x),
    "then a transform": lambda xp, x, y, m, v: xp.einsum("bij,bjk->ibk", x, y).reshape(6, -1) * 3,
}


@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("case", CASES)
def test_values(case: str) -> None:
    compute = CASES[case]
    check(compute(da, X, Y, N, U), compute(np, A, B, M, V))


@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtype_is_the_one_dask_declares(dtype: str) -> None:
    a, b = numbers(3, 6, 8, dtype=dtype), numbers(3, 8, 5, dtype=dtype, seed=1)
    x, y = da.from_array(a, chunks=(1, 4, 3)), da.from_array(b, chunks=(1, 3, 5))
    z = x @ y
    check(z, np.matmul(a.astype(z.dtype), b.astype(z.dtype)))
    z = da.einsum("abc,acd->dab", x, y)
    check(z, np.einsum("abc,acd->dab", a.astype(z.dtype), b.astype(z.dtype)))


@pytest.mark.usefixtures("enabled")
def test_a_part_of_a_batch_reads_only_its_blocks() -> None:
    explanation = dgpu.explain((X @ Y.rechunk((1, 5, 5)))[2:3])
    piece = next(each for each in explanation.to_dict()["rewritten"] if "subscripts" in each)
    assert piece["subscripts"] == "abc,acd->abd"
    assert piece["shape"] == (1, 6, 5)
    assert piece["tasks"] == 4 + 2 + 2 + 1


@pytest.mark.usefixtures("enabled")
def test_tasks_grow_with_blocks_and_not_with_pairs_of_blocks(gangs: list[str]) -> None:
    x = da.from_array(numbers(2, 12, 12), chunks=(1, 3, 3))
    z = x @ x
    (region,) = dgpu.explain(z).to_dict()["rewritten"]
    assert region["tasks"] <= 2 * 32 + 32 + 2 * 3 + 2
    assert region["tasks"] < region["dask_tasks"] == 2 * 2 * 4**3
    z.compute(scheduler="sync")
    assert len(gangs) == 1


@pytest.mark.usefixtures("enabled")
def test_persisted_operands_and_several_results() -> None:
    x, y = dask.persist(X, Y)
    z = x @ y
    whole, total = dask.compute(z, z.sum(axis=1))
    np.testing.assert_array_equal(whole, A @ B)
    np.testing.assert_array_equal(total, (A @ B).sum(axis=1))


@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("subscripts", ["ab,ab->ab", "aab,bc->ac", "ab,bc->c", "ab,bc,cd->ad"])
def test_what_is_declined_is_left_to_dask(subscripts: str, gangs: list[str]) -> None:
    cubes = [numbers(*[3] * len(each)) for each in subscripts.split("->")[0].split(",")]
    arrays = (da.from_array(each, chunks=3) for each in cubes)
    z = da.einsum(subscripts, *arrays, split_every=2)  # with it three operands stay with Dask
    assert len(dgpu.explain(z).declined) == 1
    np.testing.assert_array_equal(z.compute(scheduler="sync"), np.einsum(subscripts, *cubes))
    assert gangs == []


@st.composite
def contractions(draw: st.DrawFn) -> tuple[str, list[Any], list[da.Array]]:
    """Subscripts of two operands with a summed index, their values and arrays."""
    letters = "abcde"[: draw(st.integers(1, 5))]
    sides = [draw(st.sampled_from(["lr", "lo", "ro", "lro"])) for _ in letters]
    sides[0] = "lr"
    lengths = {letter: draw(st.integers(0, 5)) for letter in letters}
    cut = {letter: draw(chunks(length)) for letter, length in lengths.items()}
    groups = ([x for x, side in zip(letters, sides, strict=True) if at in side] for at in "lro")
    named = ["".join(draw(st.permutations(group))) for group in groups]
    dtypes = [draw(st.sampled_from(DTYPES)) for _ in range(2)]
    whole = [
        numbers(*(lengths[letter] for letter in some), dtype=dtype, seed=seed)
        for seed, (some, dtype) in enumerate(zip(named[:2], dtypes, strict=True))
    ]
    arrays = [
        da.from_array(values, chunks=tuple(cut[letter] for letter in some))
        for values, some in zip(whole, named[:2], strict=True)
    ]
    return f"{named[0]},{named[1]}->{named[2]}", whole, arrays


@st.composite
def chunks(draw: st.DrawFn, length: int) -> tuple[int, ...]:
    """Uneven chunks; Dask itself cannot contract empty chunks beside a length of 1 or 0."""
    if length < 2:
        return (length,)
    edges = sorted(draw(st.lists(st.integers(0, length), max_size=2)))
    return tuple(hi - lo for lo, hi in zip([0, *edges], [*edges, length], strict=True))


@given(contractions(), st.integers(1, 7))
@examples(200)
def test_every_einsum_of_two_operands_is_that_of_numpy(
    case: tuple[str, list[Any], list[da.Array]], ranks: int
) -> None:
    subscripts, whole, arrays = case
    z = da.einsum(subscripts, *arrays)
    with dgpu.enable(local_ranks=ranks, **ALWAYS):
        value = z.compute(scheduler="sync")
    assert value.dtype == z.dtype
    assert value.shape == z.shape
    np.testing.assert_array_equal(value, np.einsum(subscripts, *(x.astype(z.dtype) for x in whole)))
