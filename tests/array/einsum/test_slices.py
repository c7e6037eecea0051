"""The slices of a path: their work, their sizes, and where they are cut."""

from __future__ import annotations

from math import prod
from typing import Any

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from dask_dgpu.array.einsum import expression
from dask_dgpu.array.einsum.parse import parse
from dask_dgpu.array.einsum.path import steps_of
from dask_dgpu.array.einsum.slices import cut
from tests.array.einsum.test_einsum import OUTER, Array, cases, check, numpys
from tests.support.profiles import examples


@OUTER
@examples(200)
@given(cases(), st.integers(16, 400))
def test_slices_stay_within_the_limit_and_change_nothing(
    case: tuple[str, list[Array], list[da.Array]], limit: int
) -> None:
    text, arrays, operands = case
    path = dgpu.einsum_path(text, *operands, memory_limit=limit)
    with pytest.MonkeyPatch.context() as patch:
        results = recorded(patch)
        y = dgpu.einsum(text, *operands, memory_limit=limit)
    count = len(path.steps)
    sizes = [x.nbytes for at, (x, _) in enumerate(results, 1) if at % count]
    assert len(results) == count * prod(map(len, path.slices.values()))
    assert max(sizes, default=0) == path.largest_nbytes <= limit
    # equal products of several slices have one name, so Dask computes them once
    once = {(at % count, x.name): flops for at, (x, flops) in enumerate(results)}
    assert sum(once.values()) == path.flops
    assert y.chunks == dgpu.einsum(text, *operands).chunks
    terms = prod(max(a.shape, default=1) for a in arrays)
    check(y, numpys(text, *arrays), terms)


def recorded(patch: pytest.MonkeyPatch) -> list[tuple[da.Array, int]]:
    """Return a list to which each later product of two operands is added, and its work."""
    results: list[tuple[da.Array, int]] = []

    def recording(function: Any) -> Any:
        def call(x: da.Array, y: da.Array, step: dgpu.EinsumStep) -> da.Array:
            sizes = dict(zip(step.left + step.right, x.shape + y.shape, strict=True))
            work = prod(sizes.values()) * (2 if step.summed else 1)
            results.append((function(x, y, step), work))
            return results[-1][0]

        return call

    for name in ("contracted", "multiplied"):
        patch.setattr(expression, name, recording(getattr(expression, name)))
    return results


def test_steps_after_the_sum_over_a_sliced_index_are_repeated() -> None:
    subscripts = parse("ab,bc,cd,de->ae", [(9, 2), (2, 9), (9, 2), (2, 5)])
    pairs = [(0, 1), (2, 4), (3, 5)]
    whole = steps_of(subscripts, pairs, None, {})
    sliced = steps_of(subscripts, pairs, None, {"c": (3, 4, 2)})
    assert [step.flops for step in whole] == [2 * 9 * 2 * 9, 2 * 9 * 9 * 2, 2 * 9 * 2 * 5]
    assert [step.flops for step in sliced] == [2 * 9 * 2 * 9, 2 * 9 * 9 * 2, 3 * 2 * 9 * 2 * 5]
    assert [step.shape for step in sliced] == [(9, 4), (2, 9), (9, 5)]


@examples(100)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 12))
def test_slices_have_whole_chunks_where_these_fit(chunks: list[int], longest: int) -> None:
    lengths = cut(chunks, longest)
    assert sum(lengths) == sum(chunks)
    assert all(1 <= length <= longest for length in lengths)
    if max(chunks) <= longest:
        assert set(np.cumsum(lengths)) <= set(np.cumsum(chunks))
