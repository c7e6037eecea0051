"""Cosine and sine transforms of one block by FFTs, against SciPy's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.fft
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.kernels import fft
from dask_dgpu.kernels.fft import TRIGONOMETRIC, Transform, trigonometric
from dask_dgpu.kernels.fft.trigonometric import Recipe, transform
from tests.support.memory import assert_peak
from tests.support.profiles import examples

DTYPES = ["bool", "int16", "float16", "float32", "float64", "complex64", "complex128"]
NORMS = ["backward", "ortho", "forward"]
MIB = 2**20


def numbers(shape: tuple[int, ...], dtype: str) -> Any:
    rng = np.random.default_rng(sum(shape))
    values = rng.random(shape) - 0.4
    if dtype[0] == "c":
        values = values + 1j * rng.random(shape)
    return (values if dtype[0] in "fc" else 9 * values).astype(dtype)


def scipys(a: Any, kind: str, n: int, axis: int, norm: str) -> Any:
    return getattr(scipy.fft, kind[:-1])(a, int(kind[-1]), n, axis, norm)


@examples(300)
@given(data=st.data(), kind=st.sampled_from(TRIGONOMETRIC), norm=st.sampled_from(NORMS))
def test_equals_scipy(data: st.DataObject, kind: str, norm: str) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=3)))
    axis = data.draw(st.integers(0, len(shape) - 1))
    least = 2 if kind == "dct1" else 1
    n = data.draw(st.integers(least, 40) | st.just(max(least, shape[axis])))
    a = numbers(shape, data.draw(st.sampled_from(DTYPES)))
    workspace = data.draw(st.sampled_from([1, 2000, trigonometric.WORKSPACE]))
    before = a.copy()
    dtype = Transform(kind, axis, n, norm).output_dtype(a.dtype.name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trigonometric, "WORKSPACE", workspace)
        result = transform(a, kind, n, axis, norm, dtype, scipy.fft)
    np.testing.assert_array_equal(a, before)
    wide = a.astype(np.result_type(a.dtype, np.float64))
    wanted = scipys(wide, kind, n, axis, norm)
    assert result.dtype == dtype == scipys(a, kind, n, axis, norm).dtype
    assert result.flags.c_contiguous
    assert result.shape == wanted.shape
    bound = 8 * float(np.finfo(dtype).eps) * max(1.0, np.log2(n))
    assert np.linalg.norm(result - wanted) <= bound * np.linalg.norm(wanted)


@pytest.mark.parametrize("kind", TRIGONOMETRIC)
def test_parts_of_a_line_know_their_places(kind: str) -> None:
    recipe = Recipe(kind, 11, "ortho")
    a = numbers((3, 11), "float64")
    pieces = [recipe.before(a[:, at : at + 4], (0, at), 1) for at in (0, 4, 8)]
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), recipe.before(a, (0, 0), 1))
    spectrum = a + 1j if recipe.fft != "irfft" else a
    pieces = [recipe.after(spectrum[:, at : at + 4].copy(), (0, at), 1) for at in (0, 4, 8)]
    whole = recipe.after(spectrum.copy(), (0, 0), 1)
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), whole)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dct2", "dct3", "dst1", "dst4"])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_workspace_is_bounded(kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trigonometric, "WORKSPACE", MIB)
    a = np.ones((256, 64, 256), dtype)
    assert_peak(lambda: transform(a, kind, 64, 1, "backward", dtype, scipy.fft), a.nbytes + 4 * MIB)


@pytest.mark.parametrize("kind", TRIGONOMETRIC)
def test_empty(kind: str) -> None:
    for shape, axis in [((0, 5), 1), ((3, 0), 1), ((3, 0), 0)]:
        result = fft.transform(np.zeros(shape, "float32"), [Transform(kind, axis, 6)])
        wanted = tuple(6 if k == axis else length for k, length in enumerate(shape))
        np.testing.assert_array_equal(result, np.zeros(wanted, "float32"), strict=True)


def test_the_host_has_transforms_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trigonometric, "transform", None)
    a = numbers((6, 5), "float32")
    steps = [Transform("dst1", 0, 6), Transform("dct3", 1, 7, "forward")]
    wanted = scipy.fft.dct(scipy.fft.dst(a, 1, axis=0), 3, 7, 1, "forward")
    before = a.copy()
    np.testing.assert_array_equal(fft.transform(a, steps), wanted, strict=True)
    np.testing.assert_array_equal(a, before)
