"""``dgpu.conv2d`` of CuPy blocks: CuPy in, CuPy out."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from tests.array.conv2d.test_conv2d import numbers
from tests.support.reference.conv2d import check_conv2d

pytestmark = pytest.mark.gpu

OPTIONS: list[dict[str, Any]] = [
    {},
    {"padding": "same", "dilation": 3},
    {"stride": (2, 1), "padding": (1, 3), "groups": 2},
    {"padding": 9, "stride": 5},
]


@pytest.mark.parametrize("ranks", [None, 1, 3])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("options", OPTIONS)
def test_equals_torch(options: dict[str, Any], dtype: str, ranks: int | None) -> None:
    import cupy

    shape = (4, 4 // options.get("groups", 1), 4, 3)
    x, w, b = (numbers(each, dtype, 1) for each in [(3, 4, 40, 29), shape, (4,)])
    blocks = da.from_array(cupy.asarray(x), chunks=(2, 3, 13, 29), asarray=False)
    y = dgpu.conv2d(blocks, w, cupy.asarray(b), **options)
    if ranks is None:
        value = y.compute(scheduler="synchronous")
    else:
        with dgpu.enable(local_ranks=ranks, on_error="raise", when="always"):
            assert dgpu.explain(y).rewritten
            value = y.compute(scheduler="threads")
    assert isinstance(y._meta, cupy.ndarray)
    assert isinstance(value, cupy.ndarray)
    check_conv2d(cupy.asnumpy(value), x, w, b, **options)


def test_single_precision_is_not_rounded_to_tf32() -> None:
    import cupy

    x, w = (np.full(shape, 1 + 2.0**-20, "float32") for shape in [(1, 8, 16, 16), (8, 8, 1, 1)])
    blocks = da.from_array(cupy.asarray(x), chunks=(1, 8, 8, 16), asarray=False)
    check_conv2d(cupy.asnumpy(dgpu.conv2d(blocks, w).compute()), x, w, None)
