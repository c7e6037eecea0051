"""Sweeps on a host: against SciPy, in bands and in parts, with what is added and measured."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
import scipy.ndimage
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.kernels import stencil
from dask_dgpu.kernels.stencil import (
    LAPLACIAN_5PT,
    LAPLACIAN_9PT,
    Taps,
    neighbours_mean,
    padded,
    weighted,
)
from tests.support.profiles import examples

Array = Any
DTYPES = ["float32", "float64", "complex64", "complex128"]


def random(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    values = rng.uniform(-1, 1, shape)
    if dtype.startswith("c"):
        values = values + 1j * rng.uniform(-1, 1, shape)
    return values.astype(dtype)


def tolerance(array: Array, taps: Taps, sweeps: int = 1) -> dict[str, float]:
    total = max(1.0, float(np.abs(taps.weights).sum())) if taps.weights else 1.0
    eps = float(np.finfo(array.dtype).eps)
    return {"rtol": 0, "atol": 8 * eps * (len(taps.weights) + 2) * sweeps * total**sweeps}


@examples(200)
@given(data=st.data(), dtype=st.sampled_from(DTYPES), ndim=st.integers(1, 4))
def test_one_sweep(data: st.DataObject, dtype: str, ndim: int) -> None:
    lengths = tuple(data.draw(st.sampled_from([1, 3, 5])) for _ in range(ndim))
    weights = random(lengths, "float64", data.draw(st.integers(0, 9)))
    weights[np.abs(weights) < data.draw(st.sampled_from([0.0, 0.3, 2.0]))] = 0
    taps = Taps.of(weights)
    shape = tuple(2 * r + data.draw(st.integers(1, 6)) for r in taps.radius)
    u, added = random(shape, dtype, 1), random(shape, dtype, 2)
    region = []
    for reach, n in zip(taps.radius, shape, strict=True):
        start = data.draw(st.integers(reach, n - reach))
        region.append(slice(start, data.draw(st.integers(start, n - reach))))
    part = tuple(region)
    adds, measures = data.draw(st.booleans()), data.draw(st.booleans())
    out, change = np.full_like(u, 7), np.full(1, 2.0)
    assert stencil.sweeps(
        u, out, taps, [part], added if adds else None, change if measures else None
    )
    wanted = np.full_like(u, 7)
    wanted[part] = scipy.ndimage.correlate(u, weights, mode="constant")[part]
    if adds:
        wanted[part] += added[part]
    np.testing.assert_allclose(out, wanted, **tolerance(u, taps))
    if measures:
        moved = (np.abs(wanted[part] - u[part]).astype(float) ** 2).sum()
        assert change[0] == pytest.approx(2 + moved, rel=1e-4, abs=1e-4)


@examples(100)
@given(
    data=st.data(),
    dtype=st.sampled_from(DTYPES),
    sweeps=st.integers(1, 7),
    cache=st.sampled_from([1, 1000, 1 << 30]),
)
def test_bands_are_the_sweeps_one_after_the_other(
    data: st.DataObject, dtype: str, sweeps: int, cache: int
) -> None:
    weights = random(data.draw(st.sampled_from([(3,), (3, 5), (5, 3), (3, 3, 3)])), "float64", 1)
    taps = Taps.of(weights / np.abs(weights).sum())
    shape = tuple(2 * sweeps * r + data.draw(st.integers(1, 30)) for r in taps.radius)
    shrinks = [data.draw(st.sampled_from([(0, 0), (0, 1), (1, 0), (1, 1)])) for _ in shape]
    regions = [
        tuple(
            slice(r + low * at * r, n - r - high * at * r)
            for r, n, (low, high) in zip(taps.radius, shape, shrinks, strict=True)
        )
        for at in range(sweeps)
    ]
    source, added = random(shape, dtype, 3), random(shape, dtype, 4)
    target = source.copy()  # ghost cells are the same in both
    arrays = [source.copy(), target.copy()]
    for at, region in enumerate(regions):
        stencil.sweeps(arrays[at % 2], arrays[1 - at % 2], taps, [region], added)
    last = arrays[sweeps % 2]
    change = np.zeros(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stencil, "CACHE_BYTES", cache)
        patch.setattr(stencil, "MIN_BAND", 1)
        in_target = stencil.sweeps(source, target, taps, regions, added, change)
    result = target if in_target else source
    region = regions[-1]
    np.testing.assert_array_equal(result[region], last[region])
    before = arrays[1 - sweeps % 2][region]
    moved = (np.abs(last[region] - before).astype(float) ** 2).sum()
    assert change[0] == pytest.approx(moved, rel=1e-4, abs=1e-10)


@pytest.mark.parametrize("boundary", ["periodic", "reflect", "mirror", "nearest", 0.0, 2.5])
@pytest.mark.parametrize("weights", [LAPLACIAN_5PT, LAPLACIAN_9PT], ids=["5pt", "9pt"])
def test_whole_arrays(boundary: Any, weights: Array) -> None:
    names = {"periodic": "grid-wrap"}
    u, taps = random((7, 9), "float64"), Taps.of(weights)
    wide = u
    for axis in range(2):
        wide = padded(wide, axis, (1, 1), boundary)
    if isinstance(boundary, str):
        mode: Any = names.get(boundary, boundary)
        wanted = scipy.ndimage.correlate(u, weights, mode=mode)
    else:
        wanted = scipy.ndimage.correlate(u, weights, mode="constant", cval=boundary)
    np.testing.assert_allclose(weighted(wide, taps), wanted, atol=1e-13)


def test_nothing_is_padded_without_width() -> None:
    u = random((4,), "float32")
    assert padded(u, 0, (0, 0), "reflect") is u


def test_taps() -> None:
    taps = Taps.of(LAPLACIAN_5PT)
    assert taps.offsets == ((-1, 0), (0, -1), (0, 0), (0, 1), (1, 0))
    assert taps.weights == (1.0, 1.0, -4.0, 1.0, 1.0)
    assert taps.radius == (1, 1)
    np.testing.assert_allclose(LAPLACIAN_9PT.sum(), 0, atol=1e-15)
    with pytest.raises(ValueError, match="read-only"):
        LAPLACIAN_5PT[1, 1] = 0
    mean = neighbours_mean(3)
    assert (len(mean.offsets), sum(mean.weights)) == (6, pytest.approx(1))
    assert Taps.of(np.zeros((3, 3))) == Taps((), (), (1, 1))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ndim", [1, 2, 3, 4])
@pytest.mark.parametrize("sweeps", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("adds", [False, True])
def test_a_gpu_makes_the_same(dtype: str, ndim: int, sweeps: int, adds: bool) -> None:
    import cupy

    from dask_dgpu.kernels.device.cuda import CudaDevice

    weights = random((5, 3, 3, 1)[-ndim:] if ndim > 2 else (3,) * ndim, "float64", ndim)
    weights[np.abs(weights) < 0.2] = 0
    taps = Taps.of(weights / np.abs(weights).sum())
    shape = tuple(
        2 * sweeps * r + n for r, n in zip(taps.radius, (300, 70, 9, 5)[:ndim], strict=True)
    )
    if ndim == 2:
        shape = (301, 777)
    regions = [
        tuple(slice(r * (at + 1), n - r) for r, n in zip(taps.radius, shape, strict=True))
        for at in range(sweeps)
    ]
    source, added = random(shape, dtype, 3), random(shape, dtype, 4)
    target = source.copy()
    on_device = [cupy.asarray(each) for each in (source, target, added)]
    change, there = np.zeros(1), cupy.zeros(1)
    device = CudaDevice()
    device.begin()
    with device.computing():
        in_target = stencil.sweeps(
            on_device[0], on_device[1], taps, regions, on_device[2] if adds else None, there
        )
    device.synchronize()
    result = cupy.asnumpy(on_device[in_target])
    mine = stencil.sweeps(source, target, taps, regions, added if adds else None, change)
    wanted = target if mine else source
    region = regions[-1]
    np.testing.assert_allclose(result[region], wanted[region], **tolerance(wanted, taps, sweeps))
    assert float(there[0]) == pytest.approx(change[0], rel=1e-3, abs=1e-6 * prod(shape))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(67_200_000, 3), (2**31 + 70,)])
def test_a_gpu_sweeps_more_than_a_launch_counts_by_itself(shape: tuple[int, ...]) -> None:
    """More rows than 65535 blocks have as a rule, and a row of more than 2**31 numbers."""
    import cupy

    from dask_dgpu.kernels.stencil.cuda import sweeps_cuda

    source, target = cupy.ones(shape, "float32"), cupy.zeros(shape, "float32")
    inner = tuple(slice(1, n - 1) for n in shape)
    taps = neighbours_mean(len(shape))
    assert sweeps_cuda(source, target, taps, [inner] * len(shape))
    assert bool((target[inner] == 1).all())
