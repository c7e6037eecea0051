"""Operations on ranks whose blocks lie anywhere: values against NumPy, and bytes as planned."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.ndimage
from hypothesis import assume, given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from tests.support.profiles import examples
from tests.support.programs import run_scattered
from tests.support.reference.conv2d import conv2d_reference

Array = Any
INTEGERS = ["bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]
FLOATS = ["float16", "float32", "float64", "complex64", "complex128"]
LENGTHS = [1, 2, 3, 5, 7, 8, 13]
MODES = {"zero": "constant", "periodic": "wrap", "reflect": "reflect", "nearest": "nearest"}


def chunks_of(draw: st.DrawFn, length: int) -> tuple[int, ...]:
    """Uneven chunks of an axis, some empty."""
    edges = sorted(draw(st.lists(st.integers(0, length), max_size=3)))
    return tuple(np.diff([0, *edges, length]).tolist())


def values(draw: st.DrawFn, shape: tuple[int, ...], dtype: str) -> Array:
    """Small integers, of which all sums and products are exact, in C or F order."""
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    low = 0 if dtype[0] in "bu" else -3
    whole = rng.integers(low, 4, shape)
    if dtype[0] == "c":
        whole = whole + 1j * rng.integers(low, 4, shape)
    return np.asarray(whole.astype(dtype), order=draw(st.sampled_from("CF")))


def stored(draw: st.DrawFn, whole: Array) -> da.Array:
    """The array in blocks that exist."""
    chunks = tuple(chunks_of(draw, length) for length in whole.shape)
    return da.from_array(whole, chunks=chunks).persist(scheduler="sync")


def lengths(draw: st.DrawFn, count: int, most: int = 23) -> list[int]:
    return [draw(st.sampled_from([n for n in LENGTHS if n <= most])) for _ in range(count)]


Case = tuple[da.Array, Array]
"""An array, and what NumPy makes of the same operands."""


@st.composite
def rechunks(draw: st.DrawFn) -> Case:
    shape = lengths(draw, draw(st.integers(1, 3)), 13)
    whole = values(draw, tuple(shape), draw(st.sampled_from([*INTEGERS, *FLOATS])))
    axes = draw(st.permutations(range(whole.ndim)))
    turned = whole.transpose(axes)
    chunks = tuple(chunks_of(draw, length) for length in turned.shape)
    return stored(draw, whole).transpose(axes).rechunk(chunks), turned


@st.composite
def transforms(draw: st.DrawFn) -> Case:
    whole = values(draw, tuple(lengths(draw, draw(st.integers(1, 3)))), "float64")
    axes = tuple(sorted(draw(st.sets(st.integers(0, whole.ndim - 1), min_size=1))))
    name = draw(st.sampled_from(["fftn", "ifftn", "rfftn"]))
    z = getattr(dgpu.fft, name)(stored(draw, whole), axes=axes)
    return z, getattr(np.fft, name)(whole, axes=axes)


@st.composite
def overlaps(draw: st.DrawFn) -> Case:
    shape = [3 + n for n in lengths(draw, draw(st.integers(1, 3)), 8)]
    axes = range(len(shape))
    depth = {axis: draw(st.integers(0, 3)) for axis in axes}
    depth[0] = max(1, depth[0])
    whole = values(draw, tuple(shape), draw(st.sampled_from([*INTEGERS, *FLOATS])))
    sides = st.sampled_from(["none", "reflect", "periodic", "nearest", 1])
    boundary = {axis: draw(sides) for axis in axes}
    x = da.from_array(whole, chunks=tuple(max(3, n // 2) for n in shape))
    z = da.overlap.overlap(x.persist(scheduler="sync"), depth, boundary)
    return z, z.compute(scheduler="sync")


@st.composite
def stencils(draw: st.DrawFn) -> Case:
    whole = values(draw, tuple(lengths(draw, 2)), draw(st.sampled_from(["float32", "float64"])))
    boundary: Any = draw(st.sampled_from([*MODES]))
    iterations = draw(st.integers(1, 5))
    z = dgpu.stencil(stored(draw, whole), boundary=boundary, iterations=iterations)
    wanted = whole
    for _ in range(iterations):
        wanted = scipy.ndimage.correlate(wanted, dgpu.LAPLACIAN_5PT, mode=MODES[boundary])
    return z, wanted


@st.composite
def convolutions(draw: st.DrawFn) -> Case:
    groups, inputs, outputs = (draw(st.integers(1, 2)) for _ in range(3))
    taps = draw(st.integers(1, 3))
    shape = draw(st.integers(1, 5)), groups * inputs, *(taps + n for n in lengths(draw, 2, 13))
    images = values(draw, shape, "float64")
    weight = values(draw, (groups * outputs, inputs, taps, taps), "float64")
    options: dict[str, Any] = {
        "stride": draw(st.integers(1, 3)),
        "padding": draw(st.integers(0, 2)),
        "groups": groups,
    }
    z = dgpu.conv2d(stored(draw, images), stored(draw, weight), **options)
    return z, conv2d_reference(images, weight, None, **options)


RATES = st.fixed_dictionaries(
    {
        "one_sided": st.booleans(),
        "latency": st.sampled_from([1e-4, 1.0]),
        "flops": st.sampled_from([1.0, 1e11]),
    }
)
"""Of machines that prefer few messages or little work, and read each other's memory or not."""
PLACES = st.tuples(st.integers(1, 7), st.integers(0, 99), st.sampled_from([None, 1e9]))
"""Ranks, a seed for the rank of each block, and the free bytes on a rank."""


def check(case: Case, places: tuple[int, int, float | None], rates: Any) -> None:
    """Compare values, their dtype, and the bytes that the busiest rank receives."""
    (z, wanted), (ranks, seed, room) = case, places
    with dgpu.enable(local_ranks=ranks, when="always", on_error="raise"):
        assume(len(dgpu.explain(z).rewritten) == 1)  # blocks may be the same before and after
    found = run_scattered(z, ranks, seed, room, **rates)
    assert found.value.dtype == z.dtype
    kind = np.dtype(z.dtype)
    if kind.kind in "biu":
        np.testing.assert_array_equal(found.value, wanted)
    else:
        eps = float(np.finfo(kind).eps)
        scale = max(1.0, float(np.max(np.abs(wanted), initial=0)))
        np.testing.assert_allclose(found.value, wanted, rtol=0, atol=200 * eps * scale)
    (cost,) = found.costs
    assert max(ledger.bytes_received for ledger in found.ledgers) == cost.moved_bytes
    assert sum(each.bytes_sent for each in found.ledgers) == sum(
        each.bytes_received for each in found.ledgers
    )


@pytest.mark.parametrize(
    "cases",
    [rechunks(), transforms(), overlaps(), stencils(), convolutions()],
    ids=["rechunk", "fft", "overlap", "stencil", "conv2d"],
)
@examples(100)
@given(data=st.data(), places=PLACES, rates=RATES)
def test_values_and_bytes(
    cases: st.SearchStrategy[Case], data: st.DataObject, places: Any, rates: Any
) -> None:
    check(data.draw(cases), places, rates)
