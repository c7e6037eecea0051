"""Packed matrices: every bit comes back, and the bytes are as few as they can be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.kernels import zeros
from tests.support.profiles import examples

DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64"]
DTYPES += ["complex64", "complex128"]


def sparse(shape: tuple[int, int], dtype: str, density: float, seed: int = 0) -> Any:
    """Values of which this fraction is not zero, some of them -0.0, NaN and infinite."""
    rng = np.random.default_rng(seed)
    values = rng.integers(1, 100, shape).astype(dtype)
    if values.dtype.kind in "fc":
        special = rng.choice(np.array([-0.0, np.nan, -np.inf, 5e-324]), shape).astype(dtype)
        values = np.where(rng.random(shape) < 0.2, special, values)
    return np.where(rng.random(shape) < density, values, np.zeros(1, dtype))


def bits(values: Any) -> bytes:
    return bytes(np.ascontiguousarray(values).tobytes())


def nonzeros(values: Any) -> int:
    """Elements with a bit set, one by one."""
    return sum(any(bits(each)) for each in values.reshape(-1))


@examples(100)
@given(
    st.tuples(st.sampled_from([1, 2, 7, 8, 40]), st.sampled_from([1, 3, 8, 65])),
    st.sampled_from(DTYPES),
    st.sampled_from([0, 0.01, 0.2, 0.6, 1]),
    st.sampled_from(["C", "F", "gaps"]),
    st.sampled_from([64, zeros.PART]),
)
def test_every_bit_comes_back(
    shape: tuple[int, int], dtype: str, density: float, order: str, part: int
) -> None:
    values = sparse(shape, dtype, density)
    if order == "gaps":
        wide = np.zeros((2 * shape[0], 2 * shape[1]), dtype)
        wide[::2, 1::2] = values
        values = wide[::2, 1::2]
    values = np.asarray(values, order="F" if order == "F" else None)
    known, count = nonzeros(values), int(zeros.count(values))
    finite = bool(np.isfinite(values).all())
    assert count == (known if finite else ~known)
    message = np.full(zeros.packed_bytes(values.size, known, values.itemsize), 255, "uint8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zeros, "PART", part)
        zeros.pack(values, message, known)
        out = np.full_like(values, 1)
        zeros.unpack(message, known, dtype, out)
    assert bits(out) == bits(values)


def test_bitmaps_and_positions() -> None:
    assert zeros.packed_bytes(1024, 0, 4) == 0
    assert zeros.packed_bytes(1024, 1, 4) == 16 + 4
    assert zeros.packed_bytes(1024, 500, 4) == 128 + 2000
    assert zeros.packed_bytes(1 << 33, 4, 4) == (1 << 30) + 16  # positions do not fit uint32


def test_values_are_widened_on_arrival() -> None:
    values = sparse((9, 5), "int8", 0.3)
    message = np.empty(zeros.packed_bytes(45, nonzeros(values), 1), "uint8")
    zeros.pack(values, message, nonzeros(values))
    out = np.ones((9, 5), "int64")
    zeros.unpack(message, nonzeros(values), "int8", out)
    np.testing.assert_array_equal(out, values)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("density", [0, 0.01, 0.2, 1])
def test_the_same_on_the_device(dtype: str, density: float) -> None:
    cupy = pytest.importorskip("cupy")
    values = sparse((40, 65), dtype, density)
    known = nonzeros(values)
    message = np.zeros(zeros.packed_bytes(values.size, known, values.itemsize), "uint8")
    zeros.pack(values, message, known)
    for order in "CF":
        there = cupy.asarray(values, order=order)
        assert int(zeros.count(there)) == int(zeros.count(values))
        found = cupy.zeros(message.size, "uint8")
        zeros.pack(there, found, known)
        assert bits(cupy.asnumpy(found)) == bits(message)
        out = cupy.ones_like(there)
        zeros.unpack(found, known, dtype, out)
        assert bits(cupy.asnumpy(out)) == bits(values)
