"""Bad arguments of the functions of ``dask_dgpu.fft``: an error of one sentence at the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.exceptions import AxisError

import dask_dgpu as dgpu

Bad = tuple[dict[str, Any], type[Exception], str]

X = da.ones((6, 8), chunks=(2, 4))
MASKED = X.map_blocks(np.ma.array, meta=np.ma.array(np.empty((0, 0))))

FAMILIES: dict[str, tuple[Callable[..., da.Array], Callable[..., da.Array], str]] = {
    "fft": (dgpu.fft.fft, dgpu.fft.fftn, "a"),
    "dct": (dgpu.fft.dct, dgpu.fft.dctn, "x"),
    "idst": (dgpu.fft.idst, dgpu.fft.idstn, "x"),
}
"""A function of one axis, one of several, and the name of their array."""

ONE_AXIS: list[Bad] = [
    ({"n": 0}, ValueError, "expected n to be an integer of at least 1, got 0"),
    ({"n": -1}, ValueError, "expected n to be an integer of at least 1, got -1"),
    ({"n": 2.5}, TypeError, "expected n to be an integer.*, got 2.5"),
    ({"axis": 2}, AxisError, "axis: axis 2"),
    ({"axis": 0.5}, TypeError, "expected axis to be an integer, got 0.5"),
    ({"norm": "both"}, ValueError, "unknown norm 'both', expected one of backward, ortho"),
]
SEVERAL_AXES: list[Bad] = [
    ({"s": (3, 0), "axes": (0, 1)}, ValueError, "each of s to be an integer of at least 1, got 0"),
    ({"s": (3,), "axes": (0, 1)}, ValueError, "expected s and axes of the same length, got 1 and"),
    ({"s": 4}, TypeError, "expected s to be a sequence of integers, got 4"),
    ({"axes": (0, 2)}, AxisError, "axes: axis 2"),
    ({"axes": (0, 0)}, ValueError, r"expected axes to be different, got \(0, 0\)"),
    ({"axes": (0, -2)}, ValueError, r"expected axes to be different, got \(0, -2\)"),
    ({"axes": (0, 0.5)}, TypeError, "expected each of axes to be an integer, got 0.5"),
    ({"axes": 1}, TypeError, "expected axes to be a sequence of integers, got 1"),
    ({"norm": "both"}, ValueError, "unknown norm 'both', expected one of backward, ortho"),
]
ARRAYS: list[tuple[da.Array, type[Exception], str]] = [
    (X.astype(object), TypeError, "{} to be of real or complex numbers, got object"),
    (X.astype("M8[s]"), TypeError, "{} to be of real or complex numbers, got datetime64"),
    (X[:, :0], ValueError, "at least 1, got 0 by default: {} has 0 elements along axis 1"),
    (X[X[:, 0] > 0], ValueError, "{} with known chunk sizes, got unknown ones along axis 0"),
    (MASKED, TypeError, "{} with blocks of NumPy or CuPy, got numpy.ma"),
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("bad", "error", "message"), ONE_AXIS)
def test_one_axis(family: str, bad: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        FAMILIES[family][0](X, **bad)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("bad", "error", "message"), SEVERAL_AXES)
def test_several_axes(
    family: str, bad: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        FAMILIES[family][1](X, **bad)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("array", "error", "message"), ARRAYS)
def test_array(family: str, array: da.Array, error: type[Exception], message: str) -> None:
    *functions, name = FAMILIES[family]
    for function in functions:
        with pytest.raises(error, match=message.format(name)):
            function(array)


SPECIAL: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: dgpu.fft.fft2(X, s=(3,)), ValueError, "s and axes of the same length, got 1 and 2"),
    (lambda: dgpu.fft.fft2(X[0]), AxisError, "axes: axis -2"),
    (lambda: dgpu.fft.rfft(X * 1j), TypeError, "expected a to be of real numbers, got complex128"),
    (lambda: dgpu.fft.ihfft(X * 1j), TypeError, "expected a to be of real numbers, got complex128"),
    (lambda: dgpu.fft.irfft(X[:, :1]), ValueError, "got 0 by default: a has 1 elements along axis"),
    (lambda: dgpu.fft.dct(X, 5), ValueError, "expected type to be one of 1, 2, 3, 4, got 5"),
    (lambda: dgpu.fft.dct(X, 1, n=1), ValueError, "n to be an integer of at least 2, got 1"),
    (lambda: dgpu.fft.idct(X[:, :1], 1), ValueError, "of at least 2, got 1 by default: x has 1"),
]


@pytest.mark.parametrize(("call", "error", "message"), SPECIAL)
def test_special(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
