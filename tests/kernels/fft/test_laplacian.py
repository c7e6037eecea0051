"""The eigenvalues of the discrete Laplacian against its matrix, and the division by them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from dask_dgpu.kernels.fft import laplacian
from dask_dgpu.kernels.fft.laplacian import Axis, inverted

BOUNDARIES = ["periodic", "zero", "reflect"]


def matrix(axis: Axis) -> Any:
    """Return the Laplacian along one axis, made of shifted unit vectors."""
    eye = np.eye(axis.n)
    mode = {"periodic": "wrap", "zero": "constant", "reflect": "symmetric"}[axis.boundary]
    wide = np.pad(eye, [(1, 1), (0, 0)], mode=mode)
    return (wide[:-2] - 2 * eye + wide[2:]) / axis.dx**2


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("n", [1, 2, 3, 7, 12])
def test_eigenvalues(boundary: str, n: int) -> None:
    axis = Axis(n, 0.25, boundary)
    ours = axis.eigenvalues(0, n, np.float64, np.empty(0))
    wanted = np.linalg.eigvalsh(matrix(axis))
    np.testing.assert_allclose(np.sort(ours), wanted, rtol=1e-12, atol=1e-12)
    assert (ours[0] == 0) == (boundary != "zero")
    parts = [axis.eigenvalues(k, k + 1, np.float64, np.empty(0)) for k in range(n)]
    np.testing.assert_array_equal(np.concatenate(parts), ours)


@pytest.mark.parametrize("boundaries", [*itertools.product(BOUNDARIES, repeat=2)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_blocks_are_divided(
    boundaries: tuple[str, str], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(laplacian, "GROUP", 10)  # several spans
    axes = tuple(
        Axis(n, dx, each) for n, dx, each in zip((6, 9), (0.5, 2), boundaries, strict=True)
    )
    rng = np.random.default_rng(2)
    whole = (rng.random((6, 9)) + 1j * rng.random((6, 9))).astype(
        dtype if dtype[0] == "c" else "c16"
    )
    whole = whole if dtype[0] == "c" else whole.real.astype(dtype)
    before = whole.copy()
    result = np.empty_like(whole)
    for i, j in itertools.product((0, 4), (0, 2, 7)):
        part = slice(i, i + 4), slice(j, {0: 2, 2: 7, 7: 9}[j])
        result[part] = inverted(whole[part], (i, j), axes)
    np.testing.assert_array_equal(whole, before)
    one, other = (axis.eigenvalues(0, axis.n, np.float64, np.empty(0)) for axis in axes)
    total = one[:, None] + other
    constant = total == 0
    assert constant.sum() == ("zero" not in boundaries)
    wanted = np.where(constant, 0, whole / np.where(constant, 1, total))
    assert result.dtype == dtype
    np.testing.assert_allclose(result, wanted, rtol=4 * np.finfo(dtype).eps)
