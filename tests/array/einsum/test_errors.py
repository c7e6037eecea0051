"""Wrong subscripts, shapes and paths: one sentence at the call."""

from __future__ import annotations

import re
from typing import Any

import dask.array as da
import pytest

import dask_dgpu as dgpu

X, V = da.ones((2, 3), chunks=1), da.ones(3, chunks=2)
LIMITED = {"optimize": [(0, 1), (0, 1)], "memory_limit": "4 B"}

CALLS: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    (("i?,j", V, V), {}, "expected subscripts of letters, ',', '...' and '->', got '?' in 'i?,j'"),
    (("i1", X), {}, "expected subscripts of letters, ',', '...' and '->', got '1' in 'i1'"),
    (("i>i", V), {}, "expected subscripts to be inputs, or inputs, '->' and one output, got 'i>i'"),
    (("i-", V), {}, "expected subscripts to be inputs, or inputs, '->' and one output, got 'i-'"),
    (
        ("i->i->i", V),
        {},
        "expected subscripts to be inputs, or inputs, '->' and one output, got 'i->i->i'",
    ),
    (
        ("i->i,i", V),
        {},
        "expected subscripts to be inputs, or inputs, '->' and one output, got 'i->i,i'",
    ),
    (("..i", X), {}, "expected '...' at most once for each operand, got '..i'"),
    (("...i...", X), {}, "expected '...' at most once for each operand, got '...i...'"),
    (("i,j", V), {}, "expected 2 operands for 'i,j', got 1"),
    (("i", V, V), {}, "expected 1 operand for 'i', got 2"),
    (("i,", V), {}, "expected 2 operands for 'i,', got 1"),
    (("i", X), {}, "expected operand 0 with 1 axis for 'i', got 2"),
    (("i,ijk", V, X), {}, "expected operand 1 with 3 axes for 'ijk', got 2"),
    (("i...jk", X), {}, "expected operand 0 with at least 3 axes for 'i...jk', got 2"),
    (("ij->ii", X), {}, "expected each index at most once in the output, got 'ii'"),
    (("ij->k", X), {}, "expected output indices from 'ij', got 'k'"),
    (("ij,i", X, V), {}, "expected equal sizes of index 'i' in 'ij,i', got 2 and 3"),
    (("ii", X), {}, "expected equal sizes of index 'i' in 'ii', got 2 and 3"),
    (("...,...", X, X.T), {}, "expected equal sizes of '...' in '...,...', got 2 and 3"),
    (((X, X), X), {}, "expected subscripts to be text, or operands and lists of integers"),
    ((X, [0, "a"]), {}, "expected subscripts to be text, or operands and lists of integers"),
    ((X, [0, True]), {}, "expected subscripts to be text, or operands and lists of integers"),
    (("i", V[V > 0]), {}, "expected operand 0 with known chunk sizes, got unknown ones"),
    (
        ("i,i,i", V, V, V),
        {"optimize": [(0, 1)]},
        "expected optimize to contract all 3 operands, got ((0, 1),), which leaves 2",
    ),
    (
        ("i,i,i", V, V, V),
        {"optimize": [(0, 3)]},
        "expected steps of optimize to be positions from 0 to 2, got (0, 3)",
    ),
    (
        ("i,i,i", V, V, V),
        {"optimize": [(0, 0)]},
        "expected steps of optimize to be distinct positions of operands, got (0, 0)",
    ),
    (
        ("ij,jk,kl->il", X, X.T, X),
        LIMITED,
        "expected memory_limit to need at most 1024 slices, got 4 B for an intermediate of "
        "2 x 2 float64, 32 B",
    ),
]


@pytest.mark.parametrize(
    ("arguments", "settings", "message"), CALLS, ids=[each for _, _, each in CALLS]
)
@pytest.mark.parametrize("function", [dgpu.einsum, dgpu.einsum_path])
def test_message(function: Any, arguments: Any, settings: Any, message: str) -> None:
    kind = TypeError if "operands and lists" in message else ValueError
    with pytest.raises(kind, match=rf"^{re.escape(message)}[^\n]*$"):
        function(*arguments, **settings)


def test_shapes_have_no_limit() -> None:
    message = r"^expected operands to be arrays for a memory_limit, got \(2, 3\)$"
    with pytest.raises(TypeError, match=message):
        dgpu.einsum_path("ij,kj->ik", X, (2, 3), memory_limit=100)


def test_too_many_slices() -> None:
    x = da.ones((2000, 2), chunks=(100, 2))
    order = [(0, 1), (0, 1)]
    message = "at most 1024 slices, got 8 B for an intermediate of 2000 x 2000 float64, 30.52 MiB$"
    with pytest.raises(ValueError, match=message):
        dgpu.einsum("ij,kj,kl->il", x, x, x, optimize=order, memory_limit=8)
