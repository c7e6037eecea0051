"""GELU, softmax, layer norm and weighted sums against SciPy and torch in double precision."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.special
import torch
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from tests.support.profiles import examples

Array = Any
FLOATS = ["float16", "float32", "float64"]
functional = torch.nn.functional


def random(*shape: int, dtype: str = "float64", seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def tensor(x: Array) -> torch.Tensor:
    return torch.tensor(np.asarray(x, "float64"), requires_grad=True)


def close(found: Array, wanted: Any, dtype: str) -> None:
    wanted = wanted.detach().numpy() if isinstance(wanted, torch.Tensor) else wanted
    eps = float(np.finfo(dtype).eps)
    assert found.dtype == dtype
    np.testing.assert_allclose(found.astype("float64"), wanted, rtol=30 * eps, atol=10 * eps)


@pytest.mark.parametrize("dtype", FLOATS)
def test_gelu(dtype: str) -> None:
    x = np.concatenate([random(50, dtype=dtype) * 3, np.asarray([0, -100, 100, 1e4], dtype)])
    found = dgpu.gelu(da.from_array(x, chunks=7))
    assert found.dtype == dtype
    wanted = functional.gelu(tensor(x), approximate="tanh").detach().numpy()
    # torch's sqrt(2 / pi) has more digits than 0.79788456
    tolerance = max(1e-7, 4 * float(np.finfo(dtype).eps))
    np.testing.assert_allclose(found.compute(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", FLOATS)
@examples(20)
@given(
    shape=st.lists(st.sampled_from([1, 2, 5, 11]), min_size=1, max_size=3),
    chunk=st.integers(1, 6),
    data=st.data(),
)
def test_softmax(dtype: str, shape: list[int], chunk: int, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = random(*shape, dtype=dtype) * np.asarray(5, dtype)
    found = dgpu.softmax(da.from_array(x, chunks=chunk), axis=axis)
    assert (found.dtype, found.shape) == (dtype, x.shape)
    close(found.compute(), scipy.special.softmax(x.astype("float64"), axis=axis), dtype)


def test_softmax_does_not_overflow() -> None:
    x = da.from_array(np.float32([[1000, 999], [-1000, -1000]]), chunks=1)
    found = dgpu.softmax(x).compute()
    np.testing.assert_allclose(found, scipy.special.softmax(x.compute(), axis=-1), rtol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axis", [-1, (1, 2), (2, 1)])
def test_layer_norm(dtype: str, axis: Any) -> None:
    x = random(6, 5, 8, dtype=dtype) + np.asarray(3, dtype)
    last = x.shape[1:] if isinstance(axis, tuple) else x.shape[2:]
    weight, bias = random(*last, dtype=dtype, seed=1), random(*last, dtype=dtype, seed=2)
    wanted = functional.layer_norm(tensor(x), last, tensor(weight), tensor(bias), 1e-3)
    found = dgpu.layer_norm(da.from_array(x, chunks=3), axis, weight, bias, eps=1e-3)
    assert found.dtype == dtype
    close(found.compute(), wanted, dtype)
    plain = dgpu.layer_norm(da.from_array(x, chunks=(2, -1, 4)), axis).compute()
    close(plain, functional.layer_norm(tensor(x), last), dtype)


@pytest.mark.parametrize("function", [dgpu.gelu, dgpu.softmax, dgpu.layer_norm])
@pytest.mark.parametrize("dtype", ["int32", "bool"])
def test_integers_give_double_precision(function: Any, dtype: str) -> None:
    x = np.arange(12).reshape(3, 4).astype(dtype)
    found = function(da.from_array(x, chunks=2)).compute()
    assert found.dtype == "float64"
    np.testing.assert_allclose(found, function(x.astype("float64")).compute())


@examples(40)
@given(
    shape=st.lists(st.sampled_from([1, 2, 3, 7]), min_size=1, max_size=3),
    chunk=st.integers(1, 4),
    dtype=st.sampled_from(["float32", "float64", "complex128"]),
    data=st.data(),
)
def test_weighted_sum_and_gradients(
    shape: list[int], chunk: int, dtype: str, data: st.DataObject
) -> None:
    drop = data.draw(st.integers(0, len(shape)))
    of_w = [data.draw(st.sampled_from([n, n, 1])) for n in shape[drop:]]
    x, w, g = (random(*each, seed=at) for at, each in enumerate((shape, of_w, shape[:-1])))
    if dtype == "complex128":
        x, w, g = (each + 1j * random(*each.shape, seed=9) for each in (x, w, g))
    x, w, g = (np.asarray(each, dtype) for each in (x, w, g))
    at = torch.tensor(x, requires_grad=True), torch.tensor(w, requires_grad=True)
    wanted = (at[0] * at[1]).sum(-1)
    blocks = [da.from_array(each, chunks=chunk) for each in (g, x, w)]
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == "float32" else {"rtol": 1e-11}
    found = dgpu.weighted_sum(*blocks[1:])
    assert found.dtype == dtype
    np.testing.assert_allclose(found.compute(), wanted.detach(), **tolerance)
    wanted.backward(torch.tensor(g))
    for gradient, leaf in zip(dgpu.weighted_sum_grad(*blocks), at, strict=True):
        assert (gradient.dtype, gradient.shape) == (dtype, leaf.shape)
        np.testing.assert_allclose(gradient.compute(), leaf.grad, **tolerance)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: dgpu.gelu(x + 1j), TypeError, "expected x to be of real numbers, got complex"),
        (lambda x: dgpu.gelu("x"), TypeError, "expected x to be an array, got 'x'"),
        (lambda x: dgpu.softmax(x, 2), ValueError, "expected axis of an array with 2 axes, got 2"),
        (lambda x: dgpu.softmax(x, 0.5), TypeError, "expected axis to be an integer, got 0.5"),
        (lambda x: dgpu.layer_norm(x, eps=-1), ValueError, "expected eps to be at least 0, got -1"),
        (
            lambda x: dgpu.layer_norm(x, weight=np.ones(3)),
            ValueError,
            r"expected weight to broadcast to shape \(2, 4\), got \(3,\)",
        ),
        (
            lambda x: dgpu.weighted_sum(x, np.ones((2, 2, 4))),
            ValueError,
            r"expected w to broadcast to shape \(2, 4\), got \(2, 2, 4\)",
        ),
        (lambda x: dgpu.weighted_sum(x.sum(), 1), ValueError, "expected x with at least 1 axis"),
        (
            lambda x: dgpu.weighted_sum_grad(x, x, x),
            ValueError,
            r"expected g of shape \(2,\), got \(2, 4\)",
        ),
    ],
)
def test_errors_are_one_sentence(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(da.ones((2, 4), chunks=2))


def test_functions_are_the_same_while_enabled() -> None:
    x = da.from_array(random(12, 10, dtype="float32"), chunks=(5, 10))
    w = da.from_array(random(10, dtype="float32", seed=1), chunks=10)
    results = [
        dgpu.gelu(x),
        dgpu.softmax(x),
        dgpu.softmax(x, axis=0),
        dgpu.layer_norm(x, weight=w, bias=w),
        dgpu.weighted_sum(x, w),
        *dgpu.weighted_sum_grad(dgpu.weighted_sum(x, w), x, w),
    ]
    wanted = [result.compute() for result in results]
    with dgpu.enable():
        found = [result.compute() for result in results]
    for one, two in zip(found, wanted, strict=True):
        assert one.dtype == two.dtype
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)
