"""Transforms in several passes over host arrays, against NumPy and SciPy."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.fft
import zarr
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from tests.batches.test_run import Dataset, close
from tests.support.memory import assert_peak, bounded
from tests.support.profiles import examples

RNG = np.random.default_rng(0)
LIMIT = 6_000
CUBE, PLANE = RNG.random((5, 7, 6)), RNG.random((31, 23))
OF_NUMPY = ["fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn"]
OF_SCIPY = ["dctn", "idctn", "dstn", "idstn"]


def reference(name: str, x: Any, options: dict[str, Any]) -> Any:
    library = scipy.fft if name in OF_SCIPY else np.fft
    return getattr(library, name)(x, **options)


def line_limit(name: str, x: Any, options: dict[str, Any]) -> int:
    """Return the fewest bytes for the call: for one line of its longest axis."""
    with bounded(1):
        return int(dgpu.plan(name, x, **options).peak_bytes)


@pytest.mark.parametrize(
    "x", [PLANE, pytest.param(CUBE, marks=pytest.mark.slow)], ids=["plane", "cube"]
)
@pytest.mark.parametrize("name", [*OF_NUMPY, *OF_SCIPY])
def test_equals_numpy_in_any_number_of_passes(name: str, x: Any) -> None:
    expected, passes, batches = reference(name, x, {}), [], []
    with bounded(None):
        whole = dgpu.plan(name, x).peak_bytes
    for limit in (whole, whole // 3, 2 * line_limit(name, x, {})):
        with bounded(limit):
            plan = dgpu.plan(name, x)
            assert plan.feasible
            assert plan.peak_bytes <= limit
            passes.append(plan.passes)
            batches.append(plan.batches)
            close(dgpu.run(name, x), expected)
    assert passes[0] == batches[0] == 1
    assert passes[-1] == (2 if name.endswith("2") else x.ndim)
    assert batches == sorted(set(batches))


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, Any, dict[str, Any]]:
    name = draw(st.sampled_from([*OF_NUMPY, *OF_SCIPY]))
    shape = tuple(draw(st.lists(st.integers(2, 7), min_size=2, max_size=3)))
    dtype = draw(st.sampled_from(["f4", "f8", "i2"] if name.startswith("rfft") else ["f4", "c16"]))
    x = RNG.integers(-9, 9, shape).astype(dtype)
    count = 2 if name.endswith("2") else draw(st.integers(1, len(shape)))
    axes = draw(st.permutations(range(len(shape))))[:count]
    options: dict[str, Any] = {"norm": draw(st.sampled_from([None, "ortho", "forward"]))}
    if draw(st.booleans()):
        options["axes"] = tuple(axis - draw(st.sampled_from([0, len(shape)])) for axis in axes)
        if draw(st.booleans()):
            options["s"] = tuple(draw(st.integers(2, 9)) for _ in axes)
    if name in OF_SCIPY:
        options["type"] = draw(st.integers(1, 4))
    return name, x, options


@given(call=calls(), share=st.sampled_from([0.05, 0.2, 0.5]))
@examples(100)
def test_any_arguments(call: tuple[str, Any, dict[str, Any]], share: float) -> None:
    name, x, options = call
    with bounded(None):
        whole = dgpu.plan(name, x, **options).peak_bytes
    least = line_limit(name, x, options)
    with bounded(least + share * max(0, whole - least)):
        found = dgpu.run(name, x, **options)
    expected = reference(name, x, options)
    assert found.dtype == expected.dtype
    eps, scale = np.finfo(expected.dtype).eps, float(np.abs(expected).max(initial=0))
    size = float(np.abs(x).max()) * x.size  # of the terms, which may cancel out
    scale = scale if options["norm"] == "forward" else max(scale, size)
    np.testing.assert_allclose(found, expected, rtol=0, atol=50 * eps * max(scale, 1))


def test_a_pass_has_as_many_axes_as_fit() -> None:
    with bounded(LIMIT):
        plan = dgpu.plan("fftn", CUBE)
    first, second = plan.pass_plans
    assert dict(first.cuts) == {"axis 0 of the result": first.rows}
    assert "axis 0 of the result" not in second.cuts
    assert plan.batches == first.batches + second.batches
    assert plan.host_bytes == CUBE.nbytes + 3 * 2 * CUBE.nbytes
    assert plan.temporary_bytes == 0
    assert f"2 passes: {first.batches} batches" in str(plan)
    values = plan.to_dict()
    assert values["passes"] == len(values["pass_plans"]) == 2
    assert values["pass_plans"][0]["batches"] == first.batches


def test_results_between_passes_are_planned() -> None:
    with bounded(LIMIT):
        plan = dgpu.plan("irfft2", PLANE.T)
        assert plan.temporary_bytes == 2 * PLANE.nbytes
        assert "between passes, on the host" in str(plan)
        assert dgpu.plan("fft2", PLANE).temporary_bytes == 0
        assert dgpu.plan("dctn", PLANE, s=(40, 30)).temporary_bytes == 31 * 30 * 8


def test_one_pass_if_it_fits() -> None:
    with bounded(8_000):
        assert dgpu.plan("fft2", CUBE).passes == 1
        assert dgpu.plan("fft2", CUBE).batches > 1
        assert dgpu.plan("fftn", CUBE).passes == 2


OUTS: dict[str, Callable[[Any, Path], Any]] = {
    "memory map": lambda like, path: np.lib.format.open_memmap(
        path / "out.npy", "w+", like.dtype, like.shape
    ),
    "Fortran order": lambda like, path: np.empty(like.shape, like.dtype, order="F"),
    "single precision": lambda like, path: np.empty(like.shape, "c8"),
    "zarr": lambda like, path: zarr.create_array(
        path / "out", shape=like.shape, dtype=like.dtype, chunks=(9, 5)
    ),
    "HDF5": lambda like, path: Dataset(np.empty(like.shape, like.dtype)),
}


@pytest.mark.parametrize(
    "kind",
    [each if each == "zarr" else pytest.param(each, marks=pytest.mark.slow) for each in OUTS],
)
def test_result_goes_to_out(kind: str, tmp_path: Path) -> None:
    expected = np.fft.rfft2(PLANE)
    out = OUTS[kind](expected, tmp_path)
    before = PLANE.copy()
    with bounded(LIMIT):
        assert dgpu.plan("rfft2", PLANE).passes == 2
        assert dgpu.run("rfft2", PLANE, out=out) is out
    found = out.values if kind == "HDF5" else np.asarray(out[:, :])
    close(found, expected.astype(found.dtype))
    np.testing.assert_array_equal(PLANE, before)


def test_operands_in_any_container(tmp_path: Path) -> None:
    expected = np.fft.fft2(PLANE)
    np.save(tmp_path / "x.npy", PLANE)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    with bounded(LIMIT):
        for x in (mapped, da.from_array(PLANE, chunks=20)):
            close(dgpu.run("fft2", x), expected)


def test_one_line_must_fit() -> None:
    least = line_limit("fft2", PLANE, {})
    with bounded(least - 1):
        plan = dgpu.plan("fft2", PLANE)
        assert (plan.feasible, plan.batches, plan.seconds) == (False, 0, None)
        with pytest.raises(dgpu.errors.DgpuError, match="its smallest batch needs"):
            dgpu.run("fft2", PLANE)


def test_a_pass_that_fails_says_which() -> None:
    class Failing(Dataset):
        def __getitem__(self, key: Any) -> Any:
            if key[0].start > 12:
                raise OSError("unreadable")
            return super().__getitem__(key)

    out = np.full(PLANE.shape, -1, complex)
    with bounded(LIMIT), pytest.raises(OSError, match="unreadable") as caught:
        dgpu.run("fft2", Failing(PLANE), out=out)
    batches, passes = caught.value.__notes__
    assert "parts of the result were written" in batches
    assert passes == "dask_dgpu.run: this was pass 1 of 2"
    done = (out != -1).all(axis=1)
    assert done.any()
    close(out[done], np.fft.fft(PLANE)[done])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fft2", "rfft2", "irfft2", "dctn"])
@pytest.mark.parametrize("shape", [(1009, 1201), (4, 1201, 900)])
def test_plans_hold(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    limit = 8 << 20
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random(shape))
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    with bounded(limit):
        plan = dgpu.plan(name, x)
        result = dgpu.run(name, x)
        out = np.lib.format.open_memmap(tmp_path / "out.npy", "w+", result.dtype, result.shape)
        del result
        gc.collect()
        most = 1.1 * plan.peak_bytes + plan.temporary_bytes
        assert_peak(lambda: dgpu.run(name, x, out=out), most)
    assert plan.passes > 1
