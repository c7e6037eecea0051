"""The memory that NumPy's Fourier transforms allocate, as predicted and as traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from graph_opt.dask_graph.transforms import FROM_REAL, FUNCTIONS, KINDS, beside, is_transform
from tests.support.memory import ATTEMPTS, traced

SHAPES = (384, 256), (128, 768)
DTYPES = ("float16", "float32", "float64", "complex64", "complex128", "int16", "int64")
SMALL = 1 << 18
"""Bytes of lines and of Python's own objects."""

CASES = [
    (name, dtype)
    for name in sorted(FUNCTIONS)
    for dtype in DTYPES
    if not (dtype.startswith("complex") and name.rstrip("2n") in FROM_REAL)
]


def options_of(name: str) -> list[dict[str, Any]]:
    if name in KINDS:
        lengths, norms = (None, 100, 1000), (None, "ortho", "forward")
        return [
            {"n": n, "axis": axis, "norm": norm}
            for n in lengths
            for axis in (0, -1)
            for norm in norms
        ]
    axes = {"axes": (0, 1)}
    return [
        {},
        {"axes": (1,)},
        {**axes, "s": (90, 110), "norm": "ortho"},
        {**axes, "s": (700, 500)},
    ]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_what_is_traced_is_what_is_predicted(name: str, dtype: str) -> None:
    assert is_transform(getattr(np.fft, name))
    for shape in SHAPES:
        for options in options_of(name):
            predicted = beside(name, (), options, shape, dtype)
            found = beside_traced(getattr(np.fft, name), np.ones(shape, dtype), options, predicted)
            assert found == pytest.approx(predicted, abs=SMALL), (shape, options)


def beside_traced(
    function: Callable[..., Any], block: Any, options: dict[str, Any], predicted: float
) -> float:
    found = []
    for _ in range(ATTEMPTS):  # other threads may allocate too
        result, peak = traced(lambda: function(block, **options))
        found.append(peak - result.nbytes)
        if abs(found[-1] - predicted) <= SMALL:
            break
    return float(min(found))


def test_arguments_by_place() -> None:
    shape = 64, 32
    assert beside("fft", (100, 0), {}, shape, "float64") == beside(
        "fft", (), {"n": 100, "axis": 0}, shape, "float64"
    )
    assert beside("fft2", (None, (0, 1), None), {}, shape, "float64") == 64 * 32 * 16
    assert not is_transform(np.sum)
