"""Cosine and sine transforms of blocks on hosts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.fft

from dask_dgpu.kernels import fft
from dask_dgpu.kernels.fft import TRIGONOMETRIC, Transform


def numbers(shape: tuple[int, ...], dtype: str) -> Any:
    rng = np.random.default_rng(sum(shape))
    values = rng.random(shape) - 0.4
    if dtype[0] == "c":
        values = values + 1j * rng.random(shape)
    return (values if dtype[0] in "fc" else 9 * values).astype(dtype)


@pytest.mark.parametrize("kind", TRIGONOMETRIC)
def test_empty(kind: str) -> None:
    for shape, axis in [((0, 5), 1), ((3, 0), 1), ((3, 0), 0)]:
        result = fft.transform(np.zeros(shape, "float32"), [Transform(kind, axis, 6)])
        wanted = tuple(6 if k == axis else length for k, length in enumerate(shape))
        np.testing.assert_array_equal(result, np.zeros(wanted, "float32"), strict=True)


def test_types_and_norms_are_scipys() -> None:
    a = numbers((6, 5), "float32")
    steps = [Transform("dst1", 0, 6), Transform("dct3", 1, 7, "forward")]
    wanted = scipy.fft.dct(scipy.fft.dst(a, 1, axis=0), 3, 7, 1, "forward")
    before = a.copy()
    np.testing.assert_array_equal(fft.transform(a, steps), wanted, strict=True)
    np.testing.assert_array_equal(a, before)
