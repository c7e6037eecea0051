"""``dgpu.fuse``: what is traced, what is not, and that results are those of the function itself."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from functools import wraps
from typing import Any

import cloudpickle
import dask.array as da
import numpy as np
import pytest
from dask.base import tokenize

import dask_dgpu as dgpu

Array = Any
Function = Callable[..., Any]
WEIGHTS = np.linspace(0, 1, 5, dtype="float32")


def smooth(x: Array, scale: float = 2) -> Array:
    return np.where(x > 0, x, np.exp(x) - 1) * scale


def outer(x: Array, y: Array) -> Array:
    return abs(x[:, None]) - y[None, :] ** 2


TRACED: dict[str, Function] = {
    "smooth": smooth,
    "captured": lambda x: x * WEIGHTS + np.float64(1),
    "norm": lambda x: (x - x.mean(axis=-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1),
    "methods": lambda x: x.T.astype("int16").clip(-1, None).round(1) + x.sum() + x.max(0)[:, None],
    "reduce": lambda x: np.add.reduce(x) + np.maximum.reduce(x, axis=0) + np.mean(x, 0),
    "functions": lambda x: np.clip(np.transpose(x), 0, 1) + np.nan_to_num(np.round(x.T, 1)),
    "dtype": lambda x: (x.astype("float64") ** 2).astype(x.dtype) if x.ndim == 2 else x,
    "several": lambda x: (x + 1, x.argmax(axis=1), np.any(x > 0, axis=0)),
    "bounds": lambda x: np.clip(np.clip(x, a_max=0.5, a_min=-1), max=0.4, min=None),
    "one bound": lambda x: np.clip(x, max=0.5) + np.clip(x, -1, a_max=None, out=None),
    "bounds of a number": lambda x: np.clip(0, a_max=x + 1, a_min=x),
    "complex": lambda x: np.real(np.conj(x * 1j)) + np.angle(x) + (x + 2j).imag,
    "index": lambda x: x[..., None, :] + x[:, None],
    "inverted": lambda x: ~(x > 0) | np.logical_and(x, 1),
}


def counted(function: Function) -> tuple[Function, list[type]]:
    """Return a function that notes the types of what it is called with: of blocks if not traced."""
    seen: list[type] = []

    @wraps(function)
    def call(x: Array, **options: Any) -> Any:
        seen.append(type(x))
        return function(x, **options)

    return call, seen


def random(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


@pytest.mark.parametrize("name", TRACED)
def test_results_are_those_of_the_function(name: str) -> None:
    function, seen = counted(TRACED[name])
    x = random(5, 5)
    fused = dgpu.fuse(function)
    for _ in range(2):
        found, wanted = fused(x), TRACED[name](x)
        for one, two in zip(
            found if isinstance(found, tuple) else (found,),
            wanted if isinstance(wanted, tuple) else (wanted,),
            strict=True,
        ):
            assert one.dtype == two.dtype
            np.testing.assert_allclose(one, two, rtol=1e-6)
    assert seen
    assert np.ndarray not in seen


def test_blocks_of_dask_arrays() -> None:
    x = random(7, 5)
    function, seen = counted(smooth)
    found = da.from_array(x, chunks=3).map_blocks(dgpu.fuse(function), scale=3)
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found.compute(), smooth(x, 3))
    assert seen
    assert np.ndarray not in seen


def test_several_arguments_and_dtypes() -> None:
    fused = dgpu.fuse(outer)
    for dtype in ("float32", "int64", "float16"):
        x, y = random(4).astype(dtype), random(6).astype(dtype)
        found = fused(x, y)
        assert found.dtype == outer(x, y).dtype
        np.testing.assert_array_equal(found, outer(x, y))


def test_captured_arrays_are_read_in_each_call() -> None:
    weights = np.ones(3)
    fused = dgpu.fuse(lambda x: x * weights)
    assert fused(np.ones(3)).tolist() == [1, 1, 1]
    weights[:] = 2
    assert fused(np.ones(3)).tolist() == [2, 2, 2]


def _in_place(x: Array) -> Array:
    y = x * 2
    y += 1
    return y


def _hides_errors(x: Array) -> Array:
    try:
        return x + (1 if x[0, 0] > 0 else 2)
    except Exception:
        return x


UNTRACED: dict[str, tuple[Function, str]] = {
    "branch": (lambda x: x if (x > 0).all() else -x, "a Python number needs values"),
    "loop": (lambda x: sum(row for row in x), "an array's content needs values"),
    "in place": (_in_place, "in-place add"),
    "index": (lambda x: x[1:] - x[:-1], "indexing other than with new axes"),
    "shape": (lambda x: x / x.shape[0], "attribute shape"),
    "other function": (lambda x: np.concatenate([x, x]), "numpy.concatenate"),
    "linear algebra": (lambda x: x @ x.T, "numpy.matmul"),
    "clip in place": (lambda x: np.clip(x, 0, 1, 0 * x), "takes 3 positional arguments"),
    "clip of some": (lambda x: np.clip(x, 0, 1, out=0 * x, where=x > 0), "in-place clip"),
    "clip to a dtype": (lambda x: np.clip(x, 0, 1, dtype="float64"), "argument 'dtype'"),
    "scan": (lambda x: np.add.accumulate(x), "numpy.add.accumulate"),
    "constant": (lambda x: np.zeros(3), "the result is of type ndarray"),
    "hidden": (_hides_errors, "indexing other than with new axes"),
}


@pytest.mark.parametrize("name", UNTRACED)
def test_other_functions_are_called_as_they_are(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    function, reason = UNTRACED[name]
    called, seen = counted(function)
    x = random(5, 5)
    fused = dgpu.fuse(called)
    with caplog.at_level(logging.WARNING):
        for block in (x, x, x.astype("float64")):
            np.testing.assert_array_equal(fused(block), function(block))
    (record,) = caplog.records
    assert reason in record.getMessage()
    assert seen.count(np.ndarray) == 3


def test_errors_are_those_of_the_function() -> None:
    fused = dgpu.fuse(lambda x: np.invert(x))
    with pytest.raises(TypeError, match="ufunc 'invert' not supported"):
        fused(np.ones(3))


def test_without_blocks_it_is_the_function() -> None:
    fused = dgpu.fuse(smooth)
    assert fused(1.0) == 2.0
    found = fused(da.from_array(random(4), chunks=2))
    assert isinstance(found, da.Array)
    np.testing.assert_array_equal(found.compute(), smooth(random(4)))


def test_functions_may_ask_for_the_block() -> None:
    fused = dgpu.fuse(lambda x, block_id=None: x + block_id[0])
    assert da.zeros(4, chunks=2).map_blocks(fused, dtype=float).compute().tolist() == [0, 0, 1, 1]


def test_pickle_and_token() -> None:
    fused = dgpu.fuse(smooth)
    fused(random(3))
    again = pickle.loads(pickle.dumps(fused))
    np.testing.assert_array_equal(again(random(3)), fused(random(3)))
    assert again.__name__ == "smooth"
    assert tokenize(fused) == tokenize(again) == tokenize(dgpu.fuse(smooth))
    assert tokenize(fused) != tokenize(dgpu.fuse(outer))
    travelled = cloudpickle.loads(cloudpickle.dumps(dgpu.fuse(lambda x: x + 1)))
    assert travelled(np.zeros(2)).tolist() == [1, 1]


def test_traces_do_not_pile_up() -> None:
    function, seen = counted(smooth)
    fused = dgpu.fuse(function)
    for scale in range(200):
        assert fused(np.ones(1), scale=scale) == scale
    fused(np.ones(1), scale=199)
    assert len(seen) == 200
    fused(np.ones(1), scale=0)
    assert len(seen) == 201  # it was no longer kept


def test_only_functions_are_fused() -> None:
    with pytest.raises(TypeError, match="expected f to be a function, got 3"):
        dgpu.fuse(3)  # type: ignore[arg-type]
