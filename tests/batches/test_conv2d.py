"""Convolutions of host images in parts of images, against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from tests.array.conv2d.test_conv2d import numbers, problems
from tests.support.memory import bounded
from tests.support.profiles import examples
from tests.support.reference.conv2d import check_conv2d

X, W, B = (numbers(shape, "float64") for shape in [(1, 2, 37, 23), (3, 2, 3, 3), (3,)])


@given(problem=problems(), share=st.sampled_from([0.1, 0.3, 0.6]))
@examples(50)
def test_equals_torch(problem: Any, share: float) -> None:
    _, arrays, options = problem
    with bounded(None):
        whole = dgpu.plan("conv2d", *arrays, **options).peak_bytes
    with bounded(1):
        least = dgpu.plan("conv2d", *arrays, **options).peak_bytes
    with bounded(least + share * max(0, whole - least)):
        found = dgpu.run("conv2d", *arrays, **options)
    check_conv2d(found, arrays[0], arrays[1], arrays[2] if len(arrays) > 2 else None, **options)


@pytest.mark.slow
@pytest.mark.parametrize(("stride", "padding"), [(1, 2), (2, 9), (3, 0), (5, 7)])
def test_an_image_is_cut_along_rows_and_columns(stride: int, padding: int) -> None:
    options = {"stride": stride, "padding": padding}
    with bounded(1):
        least = dgpu.plan("conv2d", X, W, B, **options).peak_bytes
    with bounded(2 * least):
        plan = dgpu.plan("conv2d", X, W, B, **options)
        assert {"axis 2 of the result", "axis 3 of the result"} & plan.cuts.keys()
        check_conv2d(dgpu.run("conv2d", X, W, B, **options), X, W, B, **options)


def test_arguments_by_name_in_any_order() -> None:
    with bounded(12_000):
        assert dgpu.plan("conv2d", X, bias=B, weight=W).batches > 1
        check_conv2d(dgpu.run("conv2d", X, bias=B, weight=W), X, W, B)


def test_whole_images_come_before_parts() -> None:
    images = np.ones((24, 2, 20, 20))
    with bounded(images.nbytes):
        plan = dgpu.plan("conv2d", images, W, padding=1)
    assert list(plan.cuts) == ["axis 0 of the result"]


def test_halos_are_counted() -> None:
    with bounded(12_000):
        plan = dgpu.plan("conv2d", X, W, padding=1)
    assert list(plan.cuts) == ["axis 2 of the result"]
    result = 3 * 37 * 23 * 8
    assert plan.host_bytes == X.nbytes + (plan.batches - 1) * 2 * (2 * 23 * 8) + W.nbytes + result


def test_arrays_of_one_element_may_be_reversed() -> None:
    x, weight, bias = (np.ones(shape, "f4")[::-1] for shape in ((1, 1, 3, 4), (1, 1, 1, 2), (1,)))
    assert bias.strides[0] < 0
    np.testing.assert_array_equal(dgpu.run("conv2d", x, weight, bias), np.full((1, 1, 3, 3), 3))
