"""Cosine and sine transforms of one CuPy block, and Poisson's equation in groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.fft

from dask_dgpu.kernels.fft import TRIGONOMETRIC, Transform, factors, transform
from tests.array.poisson.test_gpu import close, numbers, solve
from tests.array.poisson.test_poisson import BOUNDARIES

pytestmark = pytest.mark.gpu


DTYPES = ["bool", "int16", "float16", "float32", "float64", "complex64", "complex128"]


SHAPES = [((17,), 0, 17), ((6, 16, 3), 1, 16), ((9, 5), 1, 8), ((3, 12), 1, 7), ((4, 2), 1, 2)]


@pytest.mark.parametrize("kind", TRIGONOMETRIC)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("workspace", [1000, 1 << 28])
def test_kernel(
    kind: str, dtype: str, norm: str, workspace: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cupy

    from dask_dgpu.kernels.fft import trigonometric_cuda

    monkeypatch.setattr(trigonometric_cuda, "WORKSPACE", workspace)
    for shape, axis, n in SHAPES if kind == "dct1" else [*SHAPES, ((3, 1), 1, 1)]:
        a = numbers(shape, dtype)
        block = cupy.asarray(a)
        result = transform(block, [Transform(kind, axis, n, norm)])
        wide = a.astype(np.result_type(a.dtype, np.float64))
        wanted = getattr(scipy.fft, kind[:-1])(wide, int(kind[-1]), n, axis, norm)
        assert result.dtype == transform(a, [Transform(kind, axis, n, norm)]).dtype
        close(result, wanted)
        assert bool((block == cupy.asarray(a)).all())
    turned = cupy.asarray(numbers((8, 6), dtype)).T  # strides of any order
    wanted = transform(cupy.asnumpy(turned).astype("c16"), [Transform(kind, 0, 6, norm)])
    close(transform(turned, [Transform(kind, 0, 6, norm)]), wanted)


@pytest.mark.parametrize("boundary", [*BOUNDARIES, ("periodic", "zero", "reflect")])
@pytest.mark.parametrize("dtype", ["int16", "float16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("ranks", [None, 3])
def test_poisson_in_groups(
    boundary: Any, dtype: str, ranks: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(factors, "GROUP", 50)
    solve(boundary, dtype, ranks)
