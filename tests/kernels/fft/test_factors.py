"""The local steps of transforms of long axes and of Poisson's equation, against plain Python."""

from __future__ import annotations

import cmath
import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.kernels.fft import factors
from dask_dgpu.kernels.fft.factors import (
    Axis,
    chirp_filter,
    chirped,
    divide,
    one_sided,
    real_part,
    squares,
)

BOUNDARIES = ["periodic", "zero", "reflect"]
EPS = float(np.finfo("float64").eps)


def root(power: int, n: int, sign: int) -> complex:
    """Return a root of unity; the integers are exact and the angle is small."""
    power %= n
    power -= n if 2 * power > n else 0
    return cmath.exp(sign * 2j * math.pi * (power / n))


@given(
    n=st.integers(1, 2**60),
    data=st.data(),
    sign=st.sampled_from([-1, 1]),
)
def test_roots_of_unity(n: int, data: st.DataObject, sign: int) -> None:
    powers = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=5))
    found = factors.roots_of_unity(np.array(powers), n, sign, "complex64")
    assert found.dtype == np.complex128
    np.testing.assert_allclose(found, [root(p, n, sign) for p in powers], rtol=0, atol=8 * EPS)


@given(data=st.data())
def test_squares_are_exact(data: st.DataObject) -> None:
    modulus = data.draw(st.integers(1, 2 ** data.draw(st.integers(1, 60))))
    m = data.draw(st.lists(st.integers(0, modulus - 1), min_size=1, max_size=5))
    found = squares(np.array(m), modulus)
    assert found.tolist() == [each * each % modulus for each in m]


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "clongdouble"])
@pytest.mark.parametrize("group", [1, 7, 1 << 20])
@pytest.mark.parametrize(("axis", "shape"), [(0, (5, 7)), (1, (2, 6, 10, 3)), (0, (4, 0))])
def test_twiddled(
    monkeypatch: pytest.MonkeyPatch, dtype: str, group: int, axis: int, shape: tuple[int, ...]
) -> None:
    monkeypatch.setattr(factors, "GROUP", group)
    first_row, first_column, n, sign = 10**6 + 3, 3 * 10**6, 10**13 + 37, -1
    block, start = np.ones(shape, dtype), (0,) * axis + (first_row, first_column)
    found = factors.twiddled(block, start, axis, n, sign)
    rows, columns = shape[axis : axis + 2]
    wanted = np.array(
        [
            [root((first_row + j) * (first_column + k), n, sign) for k in range(columns)]
            for j in range(rows)
        ]
    ).reshape((*(1,) * axis, rows, columns, *(1,) * (len(shape) - axis - 2)))
    eps = max(EPS, float(np.finfo(dtype).eps))
    np.testing.assert_allclose(found, np.broadcast_to(wanted, shape), rtol=0, atol=8 * eps)
    assert found.dtype == block.dtype
    assert (block == 1).all()


@given(data=st.data())
def test_matrix_and_back(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    axis = data.draw(st.integers(0, len(shape) - 1))
    width = data.draw(st.integers(1, 8))
    block = np.arange(math.prod(shape)).reshape(shape)
    matrix = factors.matrix_of(block, axis, width)
    rows = -(-shape[axis] // width)
    assert matrix.shape == (*shape[:axis], rows, width, *shape[axis + 1 :])
    for by_columns in (False, True):
        given_ = matrix.swapaxes(axis, axis + 1) if by_columns else matrix
        line = factors.line_of(given_, axis, by_columns=by_columns)
        kept, rest = np.split(line, [shape[axis]], axis=axis)
        np.testing.assert_array_equal(kept, block)
        assert not rest.any()


@pytest.mark.parametrize("dtype", ["bool", "int16", "float16", "float32", "complex128"])
@pytest.mark.parametrize("n", [5, 2**40 + 15])
def test_chirped(dtype: str, n: int) -> None:
    block, start, scale = np.ones((2, 3), dtype), n - 4, 0.5
    out = np.result_type(dtype, 1j).name
    found = chirped(block, (0, start), 1, n, -1, out, scale)
    wanted = [0.5 * root((start + m) ** 2, 2 * n, -1) for m in range(3)]
    np.testing.assert_allclose(found, [wanted, wanted], rtol=8 * float(np.finfo(out).eps))
    assert found.dtype == out


def test_chirp_filter() -> None:
    n, rows, columns = 7, 4, 4
    length = rows * columns
    whole = [
        chirp_filter(row, (1, columns), length, n, -1, "complex128", "numpy") for row in (0, 1)
    ]
    whole.append(chirp_filter(2, (2, columns), length, n, -1, "complex128", "numpy"))
    wanted = [root(d * d, 2 * n, 1) if (d := min(m, length - m)) < n else 0 for m in range(length)]
    np.testing.assert_allclose(np.concatenate(whole).ravel(), wanted, atol=8 * EPS)


@given(n=st.integers(1, 30), start=st.integers(0, 5), length=st.integers(0, 20), data=st.data())
def test_one_sided(n: int, start: int, length: int, data: st.DataObject) -> None:
    length = min(length, max(0, n // 2 + 1 - start))
    dtype = data.draw(st.sampled_from(["int8", "float32", "complex64", "complex128"]))
    block = (np.arange(1, 1 + 2 * length).reshape(2, length) * (1 + 0j)).real.astype(dtype)
    if block.dtype.kind == "c":
        block += block.dtype.type(1j)
    found: Any = one_sided(block, (0, start), 1, n, np.result_type(dtype, 1j).name)
    for at in range(length):
        own = start + at == 0 or 2 * (start + at) == n
        np.testing.assert_array_equal(
            found[:, at], block[:, at].real if own else 2 * block[:, at].astype(found.dtype)
        )


def test_real_part_has_memory_of_its_own() -> None:
    block = np.ones(3, complex)
    part = real_part(block, "float64")
    assert part.base is None
    assert part.dtype == np.float64
    assert real_part(block, "float16").dtype == np.float16


def laplacian(axis: Axis) -> Any:
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
    wanted = np.linalg.eigvalsh(laplacian(axis))
    np.testing.assert_allclose(np.sort(ours), wanted, rtol=1e-12, atol=1e-12)
    assert (ours[0] == 0) == (boundary != "zero")
    parts = [axis.eigenvalues(k, k + 1, np.float64, np.empty(0)) for k in range(n)]
    np.testing.assert_array_equal(np.concatenate(parts), ours)


@pytest.mark.parametrize("boundaries", [*itertools.product(BOUNDARIES, repeat=2)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_blocks_are_divided(
    boundaries: tuple[str, str], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(factors, "GROUP", 10)  # several spans
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
        result[part] = divide(whole[part], (i, j), axes)
    np.testing.assert_array_equal(whole, before)
    one, other = (axis.eigenvalues(0, axis.n, np.float64, np.empty(0)) for axis in axes)
    total = one[:, None] + other
    constant = total == 0
    assert constant.sum() == ("zero" not in boundaries)
    wanted = np.where(constant, 0, whole / np.where(constant, 1, total))
    assert result.dtype == dtype
    np.testing.assert_allclose(result, wanted, rtol=4 * np.finfo(dtype).eps)


LONG = 2**29
"""The length of a transform whose factors of a chirp have powers of 60 bits."""

BY_POSITION: dict[str, Any] = {
    "twiddled": lambda x: factors.twiddled(x, (0, 1000, 3000), 1, LONG, 1),
    "twiddled, far": lambda x: factors.twiddled(x, (0, 10**6, 3 * 10**6), 1, 10**13 + 37, -1),
    "chirped": lambda x: chirped(x, (0, 0, LONG // 3), 2, LONG, -1, x.dtype.name, 0.5),
    "chirped rows": lambda x: chirped(x, (0, 7, 0), 1, 2**60 - 1, 1, "complex128"),
    "divide": lambda x: divide(x, (0, 0, 0), tuple(Axis(9000, 0.5, "periodic") for _ in x.shape)),
    "divide inside": lambda x: divide(x.real, (1, 2, 3), (Axis(9000, 2.0, "zero"),) * 3),
    "divide one": lambda x: divide(x[0, :, 0], (0,), (Axis(9000, 2.0, "reflect"),)),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", BY_POSITION)
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("shape", [(2, 3, 5000), (1, 37, 4096), (3, 1, 1), (2, 0, 3)])
def test_factors_on_a_gpu(name: str, dtype: str, shape: tuple[int, ...]) -> None:
    import cupy

    rng, function = np.random.default_rng(3), BY_POSITION[name]
    x = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    wanted = function(x)
    for block in (cupy.asarray(x), cupy.asarray(x.T.copy()).T):
        found = function(block)
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(found.get(), wanted, rtol=16 * np.finfo(dtype).eps)
        np.testing.assert_array_equal(block.get(), x)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [7, LONG // 2 + 1, 2**60 - 1])
def test_a_chirp_filter_on_a_gpu(n: int) -> None:
    length = 1 << (2 * n - 1).bit_length()
    row = max(0, n // 4096 - 1)  # rows around the distance n, from which on there are zeros
    shape = (2, 4096, 1) if n > 7 else (4, 4, 1)
    wanted, found = (
        chirp_filter(row, shape, length, n, -1, "complex128", module)
        for module in ("numpy", "cupy")
    )
    np.testing.assert_allclose(found.get(), wanted, rtol=0, atol=16 * EPS)
