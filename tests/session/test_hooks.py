"""Patches of Dask's functions: installed once, and restored except where others patched."""

from __future__ import annotations

import sys
from typing import Any

import dask.array as da
import pytest

import dask_dgpu as dgpu
from dask_dgpu.session.hooks import patches

OWNERS = [(owner, name) for owner, name, _ in patches("compensated", "float16")]
ORIGINALS = [getattr(owner, name) for owner, name in OWNERS]


def patched() -> list[str]:
    """Return the names of all functions that are not Dask's own."""
    pairs = zip(OWNERS, ORIGINALS, strict=True)
    return [name for (owner, name), own in pairs if getattr(owner, name) is not own]


def test_the_setting_selects_what_is_patched() -> None:
    assert patched() == []
    with dgpu.enable():
        plain = patched()
        assert "to_delayed" in plain
        assert "rfft2" in plain
        with dgpu.enable(sum_method="compensated", matmul_wire_dtype="float16"):
            assert patched() == [name for _, name in OWNERS]
        assert patched() == plain
    assert patched() == []


def attributes() -> dict[tuple[str, str], Any]:
    """Return what stands under each name in a module or class of Dask, NumPy and Python."""
    found = {}
    for module in {*sys.modules} & {"sys", "logging", "threading", "socket", "numpy"} | {
        name for name in sys.modules if name.partition(".")[0] in ("dask", "distributed")
    }:
        owners = {"": sys.modules[module]} | {
            f"{name}.": each
            for name, each in vars(sys.modules[module]).items()
            if isinstance(each, type) and each.__module__ == module
        }
        for prefix, owner in owners.items():
            for name, each in list(vars(owner).items()):
                if callable(each):
                    found[module, prefix + name] = each
    return found


def test_ten_names_of_dask_are_patched_besides_the_transforms_and_all_are_restored() -> None:
    with dgpu.enable():
        pass  # it imports modules
    before = attributes()
    with dgpu.enable():
        during = attributes()
    changed = {place for place, own in before.items() if during[place] is not own}
    names = {name for module, name in changed if module != "dask.array.fft"}
    names.discard("collections_to_expr")  # only if dask_array is imported
    transforms = {name for module, name in changed if module == "dask.array.fft"}
    assert (len(names), len(transforms)) == (10, 14), sorted(names)
    after = attributes()
    assert [place for place, own in before.items() if after[place] is not own] == []


def test_disabled_twice_and_enabled_again() -> None:
    with dgpu.enable(sum_method="compensated"):
        every = patched()
        with dgpu.enable():
            dgpu.disable()
            dgpu.disable()
            assert patched() == []
        assert patched() == every
    assert patched() == []


def test_a_patch_of_somebody_else_before_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(x: Any, **kwargs: Any) -> str:
        return "other"

    monkeypatch.setattr(da.fft, "hfft", other)
    dgpu.enable()
    with dgpu.enable():
        assert da.fft.hfft is dgpu.fft.hfft
    assert da.fft.hfft is dgpu.fft.hfft
    dgpu.disable()
    assert da.fft.hfft is other


def test_sums_of_partial_products_are_those_of_the_contraction() -> None:
    x = da.ones((4, 4), chunks=2)
    with dgpu.enable(sum_method="compensated"):
        assert x.sum().name.startswith("compensated_sum")
        for y in (da.tensordot(x, x, axes=2), da.einsum("ij,jk", x, x), dgpu.einsum("ij,jk", x, x)):
            assert y.name.startswith("sum-aggregate")
