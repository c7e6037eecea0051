"""Kernels on blocks of no elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dask_dgpu.kernels.fft import factors
from dask_dgpu.kernels.sums.partial import partial_sum
from dask_dgpu.operations.operation import conforming
from graph_opt.model.layout import dtype_named


class LikeCuPy(np.ndarray[Any, Any]):
    """Blocks whose ``zeros_like`` takes a shape of ``()`` for none, as CuPy's does."""

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Call NumPy's function, without a shape of ``()``."""
        if kwargs.get("shape") == ():
            del kwargs["shape"]
        return super().__array_function__(function, types, args, kwargs)


@pytest.mark.parametrize("method", ["compensated", "reproducible"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64", "int16", "complex64"])
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)], ids=str)
def test_partial_sums(shape: tuple[int, ...], dtype: str, method: Any) -> None:
    block = np.zeros(shape, dtype_named(dtype)).view(LikeCuPy)
    for axes in [(0,), (len(shape) - 1,), tuple(range(len(shape)))]:
        found = partial_sum(block, axes, method, "complex128" if dtype[0] == "c" else "float64")
        wanted = np.zeros(shape).sum(axis=axes, keepdims=True)
        value = found.sums.value()
        assert value.shape == (*wanted.shape, *(2,) * (found.parts - 1))
        assert not value.any()


def test_kernels_of_long_axes_and_of_the_laplacian() -> None:
    for shape in ((0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 4)):
        for axis in (0, 1):
            block = np.zeros(shape, complex)
            line = factors.line_of(block, axis, by_columns=True)
            wanted = [n for k, n in enumerate(shape) if k not in (axis, axis + 1)]
            wanted.insert(axis, shape[axis] * shape[axis + 1])
            assert line.shape == tuple(wanted)
            assert factors.twiddled(block, (0,) * 3, axis, 12, 1).shape == shape
        axes = tuple(factors.Axis(max(n, 1), 1.0, "periodic") for n in shape)
        assert factors.divide(np.zeros(shape), (0, 0, 0), axes).shape == shape


def test_conforming() -> None:
    declared = ("x", "int64", (4, 0), "numpy.ndarray")
    for block in (np.zeros((1, 0), np.int64), np.zeros((4, 0)), np.zeros(0), []):
        found = conforming(block, *declared)
        assert (found.shape, found.dtype) == ((4, 0), np.int64)
    with pytest.raises(ValueError, match=r"is declared with shape \(4, 0\) but has \(4, 1\)"):
        conforming(np.zeros((4, 1), np.int64), *declared)
    with pytest.raises(ValueError, match=r"is declared with shape \(4, 1\) but has \(4, 0\)"):
        conforming(np.zeros((4, 0)), "x", "float64", (4, 1), "numpy.ndarray")
