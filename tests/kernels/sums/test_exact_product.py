"""Products of two numbers as exact sums."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.kernels.sums.exact_product import count, terms
from tests.array.reductions.test_products import exactly, vectors


@given(st.data(), vectors())
def test_terms_are_exact(data: st.DataObject, pair: tuple[Any, Any]) -> None:
    x, y = pair
    made = terms(x, y)
    assert made.shape == (len(x), count(x.dtype, y.dtype))
    for a, b, each in zip(x, y, made, strict=True):
        real, imaginary, _ = exactly(a.reshape(1), b.reshape(1))
        assert sum(map(Fraction, each.real.tolist())) == real
        assert sum(map(Fraction, each.imag.tolist())) == imaginary
