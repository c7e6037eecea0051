"""``dgpu.einsum_path``: order, cost and largest intermediate; every form of ``optimize``."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import opt_einsum
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from tests.support.profiles import examples

CHAIN = "ij,jk,kl->il"
SHAPES = ((50, 2), (2, 50), (50, 3))
ARRAYS = [da.ones(shape, chunks=7, dtype="float32") for shape in SHAPES]


def test_steps_and_cost() -> None:
    path = dgpu.einsum_path(CHAIN, *ARRAYS)
    first, last = path.steps
    assert (first.left, first.right, first.result, first.summed) == ("jk", "kl", "jl", "k")
    assert (last.operands, last.result, last.shape) == ((0, 3), "il", (50, 3))
    assert path.path == ((1, 2), (0, 1))
    assert path.flops == first.flops + last.flops == 2 * (2 * 50 * 3) + 2 * (50 * 2 * 3)
    assert (path.largest_intermediate, path.largest_nbytes) == (6, 24)


def test_shapes_have_no_bytes() -> None:
    path = dgpu.einsum_path(CHAIN, *SHAPES)
    assert path.path == dgpu.einsum_path(CHAIN, *ARRAYS).path
    assert path.largest_nbytes is None
    assert dgpu.einsum_path(CHAIN, ARRAYS[0], *SHAPES[1:]).largest_nbytes is None


def test_it_prints_a_table() -> None:
    lines = str(dgpu.einsum_path(CHAIN, *ARRAYS, optimize=[(0, 1), (0, 1)])).splitlines()
    assert lines[:2] == ["ij,jk,kl->il: 25 kflop", "largest intermediate: 2500 elements, 9.77 kiB"]
    assert lines[-1].split() == ["ik,kl->il", "k", "50", "x", "3", "150", "600", "B", "15", "k"]


def test_it_displays_a_table() -> None:
    html = dgpu.einsum_path(CHAIN, *SHAPES)._repr_html_()
    assert "<td>jk,kl-&gt;jl</td>" in html


def test_rows_of_a_result_come_from_the_left() -> None:
    arrays = [np.ones(shape) for shape in ((2, 3, 4), (2, 4, 5), (2, 5, 6))]
    path = dgpu.einsum_path("bij,bjk,bkl->bil", *arrays, optimize=[(0, 1), (0, 1)])
    assert [(step.left, step.right) for step in path.steps] == [("bij", "bjk"), ("bik", "bkl")]
    assert path.steps[1].operands == (3, 2)


def test_slices_are_chunks_and_shown() -> None:
    path = dgpu.einsum_path(CHAIN, *ARRAYS, optimize=[(0, 1), (0, 1)], memory_limit="3 kiB")
    assert path.slices == {"i": (14, 14, 14, 8)}
    assert path.largest_nbytes == 14 * 50 * 4
    assert path.flops == dgpu.einsum_path(CHAIN, *ARRAYS, optimize=path).flops
    assert "i in 4 slices" in str(path)


@st.composite
def networks(draw: Any) -> tuple[str, list[tuple[int, ...]]]:
    sizes = {letter: draw(st.integers(1, 5)) for letter in "abcdef"}
    term = st.text("abcdef", min_size=1, max_size=3).filter(lambda t: len(set(t)) == len(t))
    terms = draw(st.lists(term, min_size=2, max_size=5))
    found = sorted(set("".join(terms)))
    output = "".join(each for each in found if draw(st.booleans()))
    return f"{','.join(terms)}->{output}", [tuple(sizes[i] for i in each) for each in terms]


@examples(100)
@given(networks())
def test_cost_and_sizes_are_those_of_opt_einsum(case: tuple[str, list[tuple[int, ...]]]) -> None:
    """For operands without sums of their own, which are no steps here."""
    text, shapes = case
    path = dgpu.einsum_path(text, *shapes)
    reduced = reduced_terms(text)
    _, info = opt_einsum.contract_path(
        reduced, *shapes_of(reduced, text, shapes), shapes=True, optimize=path.path
    )
    assert path.flops == info.opt_cost
    assert [step.elements for step in path.steps] == info.size_list


def reduced_terms(text: str) -> str:
    inputs, output = text.split("->")
    terms = inputs.split(",")
    kept = ["".join(i for i in each if i in output or inputs.count(i) > 1) for each in terms]
    return f"{','.join(kept)}->{output}"


def shapes_of(reduced: str, text: str, shapes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    sizes: dict[str, int] = {}
    for term, shape in zip(text.split("->")[0].split(","), shapes, strict=True):
        sizes.update(zip(term, shape, strict=True))
    return [tuple(sizes[i] for i in term) for term in reduced.split("->")[0].split(",")]


FOUR = "ab,bc,cd,de->ae"
OPERANDS = [np.arange(12.0).reshape(3, 4) % 5 for _ in range(4)]
OPERANDS[1::2] = [each.T for each in OPERANDS[1::2]]


@pytest.mark.parametrize(
    "optimize",
    [
        "auto",
        "greedy",
        "optimal",
        "dp",
        True,
        [(0, 1), (0, 1), (0, 1)],
        ((2, 3), [1, 2], (0, 1)),
        [(3, 0), (0, 1, 2)],
        [(0, 1, 2, 3)],
        [(0,), (0, 1), (0, 1), (1, 0)],
        np.einsum_path(FOUR, *OPERANDS)[0],
        dgpu.einsum_path(FOUR, *OPERANDS),
        dgpu.einsum_path(FOUR, *(each.shape for each in OPERANDS), optimize="greedy"),
    ],
    ids=repr,
)
def test_forms_of_optimize(optimize: Any) -> None:
    y = dgpu.einsum(FOUR, *OPERANDS, optimize=optimize)
    np.testing.assert_array_equal(y.compute(scheduler="synchronous"), np.linalg.multi_dot(OPERANDS))
    path = dgpu.einsum_path(FOUR, *OPERANDS, optimize=optimize)
    assert len(path.steps) == 3
    assert dgpu.einsum_path(FOUR, *OPERANDS, optimize=path) == path


def test_the_order_of_least_work_is_taken() -> None:
    """From left to right, an intermediate would have 300 x 300 elements."""
    x = da.ones((300, 2), chunks=(100, 2))
    path = dgpu.einsum_path("ab,cb,cd,ed->ae", x, x, x, x)
    assert path.largest_intermediate == 600
    assert path.flops == 2 * (2 * 300 * 2) + 2 * (300 * 2 * 2) + 2 * (300 * 2 * 300)
