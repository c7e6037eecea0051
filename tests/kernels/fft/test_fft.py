"""Transforms of one block against NumPy, of any strides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.kernels.fft import Transform, transform

NORMS = ("backward", "ortho", "forward")


@st.composite
def views(draw: st.DrawFn) -> tuple[Any, tuple[slice, ...], tuple[int, ...]]:
    """An array, what is taken of it, and the order of its axes then."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 5, 8, 12]), min_size=1, max_size=4)))
    slices = tuple(
        slice(draw(st.integers(0, n - 1)), n, draw(st.sampled_from([1, 1, 2]))) for n in shape
    )
    order = tuple(draw(st.permutations(range(len(shape)))))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    array = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    return array.astype(draw(st.sampled_from(["complex64", "complex128"]))), slices, order


def check(data: st.DataObject, xp: Any) -> None:
    array, slices, order = data.draw(views())
    block = xp.asarray(array)[slices].transpose(order)
    wanted = array[slices].transpose(order).astype("complex128")
    axis = data.draw(st.integers(0, block.ndim - 1))
    kind = data.draw(st.sampled_from(["fft", "ifft"]))
    norm = data.draw(st.sampled_from(NORMS))
    overwrite = data.draw(st.booleans())
    each = Transform(kind, axis, block.shape[axis], norm)
    made = transform(block, [each], overwrite=overwrite)
    wanted = getattr(np.fft, kind)(wanted, axis=axis, norm=norm)
    assert made.dtype == array.dtype
    made = made if xp is np else made.get()
    bound = 8 * np.finfo(array.dtype).eps * max(1, np.log2(each.n))
    assert np.linalg.norm(made - wanted) <= bound * np.linalg.norm(wanted)
    if not overwrite:
        np.testing.assert_array_equal(
            block if xp is np else block.get(), array[slices].transpose(order)
        )


@given(st.data())
def test_views(data: st.DataObject) -> None:
    check(data, np)


@pytest.mark.gpu
@given(st.data())
def test_views_on_a_gpu(data: st.DataObject) -> None:
    import cupy

    check(data, cupy)


@pytest.mark.gpu
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("order", ["C", "F"])
def test_lines_are_read_where_they_lie(axis: int, order: str) -> None:
    import cupy

    from dask_dgpu.kernels.fft.cuda import transformed

    whole = cupy.zeros((6, 8, 10), "complex64", order=order)
    whole[...] = cupy.arange(480).reshape(6, 8, 10)
    part = whole[1:5, 2:7, 3:9]
    made = transformed(part, axis, inverse=True, factor=2.0, overwrite=False)
    assert made.strides[axis] == made.itemsize
    n = part.shape[axis]
    np.testing.assert_allclose(made.get(), np.fft.ifft(part.get(), axis=axis) * n * 2, rtol=1e-4)
    for other in (part.real, part[::-1], cupy.broadcast_to(part[:1], part.shape)):
        assert transformed(other, 0, inverse=True, factor=1.0, overwrite=False) is None
