"""What is written once for NumPy and CuPy is one kernel on GPUs; without a GPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from dask_dgpu.kernels.fused import traced
from dask_dgpu.kernels.fused.host import evaluate_host
from dask_dgpu.kernels.fused.kernel import Array, Launch, contiguous
from dask_dgpu.kernels.fused.plan import planned
from dask_dgpu.kernels.sums.binned import _rounded
from dask_dgpu.kernels.sums.compensated import _compensated, _two_sums, _value
from dask_dgpu.kernels.sums.conversion import _cast, _upper_halves
from dask_dgpu.kernels.sums.digits import _digits, _quick
from dask_dgpu.kernels.sums.exact_product import _whole, _whole_and_rest
from tests.kernels.fused.test_plan import described


@pytest.mark.parametrize(
    ("function", "dtypes"),
    [
        *((_two_sums, ["f8"] * arrays) for arrays in (4, 8)),
        *((_value, ["f8"] * arrays) for arrays in (2, 4)),
        *((partial(_cast, dtype=to), [dtype]) for to, dtype in (("f8", "f4"), ("f4", "f8"))),
        (_upper_halves, ["u4"]),
        *(
            (partial(_rounded, low=31, dtype=dtype), ["u1", *["i8"] * 4])
            for dtype in ("float32", "float64")
        ),
        *((_whole, [dtype] * 2) for dtype in ("f2", "f4")),
        *((_whole_and_rest, dtypes) for dtypes in (["f8", "f8"], ["f8", "f4"], ["f2", "f8"])),
    ],
)
@pytest.mark.parametrize("shape", [(), (1,), (3, 500)])
def test_one_kernel(function: Any, dtypes: list[str], shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    blocks = [
        (rng.random(shape) * 2.0 ** {"f2": 9, "u1": 3}.get(dtype, 31)).astype(dtype)
        for dtype in dtypes
    ]
    expression = traced(function, tuple((np.dtype(dtype), len(shape)) for dtype in dtypes))
    (step,) = planned(expression, [described(np.asarray(block)) for block in blocks])
    assert isinstance(step, Launch)
    assert [entry.name for entry in step.entries] == ["fused"]
    for found, wanted in zip(evaluate_host(expression, blocks), function(*blocks), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i2", "u8", "?"])
@pytest.mark.parametrize("doubles", [False, True])
@pytest.mark.parametrize(
    ("shape", "axes"), [((), ()), ((7,), (0,)), ((1 << 24, 16), (0,)), ((1 << 16, 512), (1,))]
)
def test_one_read_for_sums_and_what_is_set_apart(
    dtype: str, doubles: bool, shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    block = Array(np.dtype(dtype), shape, contiguous(shape), 0)
    kinds = ((block.dtype, len(shape)),)
    (step,) = planned(traced(_compensated, kinds, axes=axes, doubles=doubles), [block])
    assert isinstance(step, Launch)
    assert len(step.operands) == 1
    assert [(out.dtype.name, len(out.shape)) for out in step.outputs] == [
        ("complex128", len(shape) - len(axes))
    ] * (1 + doubles)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "axes", "kernels"),
    [
        ((1 << 26, 16), (1,), ["on_chip"]),
        ((1 << 21, 512), (1,), ["on_chip"]),
        ((512, 128), (1,), ["on_chip"]),
        ((1 << 21, 512), (0,), ["columns", "fused"]),
        ((1 << 10, 1 << 20), (1,), ["rows", "fused"]),
    ],
)
def test_many_exact_sums_are_one_launch(
    dtype: str, shape: tuple[int, ...], axes: tuple[int, ...], kernels: list[str]
) -> None:
    block = Array(np.dtype(dtype), shape, contiguous(shape), 0)
    plan = planned(traced(_quick, ((block.dtype, len(shape)),), axes=axes, low=31), [block])
    assert [step.entries[0].name for step in plan if isinstance(step, Launch)] == kernels
    bits = block._replace(dtype=np.dtype(f"i{block.dtype.itemsize}"))
    kinds = ((bits.dtype, len(shape)),)
    (step,) = planned(traced(_digits, kinds, axes=axes, low=31, count=3), [bits])
    assert isinstance(step, Launch)
