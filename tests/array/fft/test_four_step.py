"""Transforms along an axis of which no block has all, against SciPy."""

from __future__ import annotations

import math
import time
import warnings
from itertools import accumulate
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft
from dask.callbacks import Callback
from dask.core import flatten
from dask.local import get_sync
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from tests.array.fft.conftest import largest_of_a_block
from tests.support.profiles import examples

NAMES = ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"]
SEVERAL = ["fftn", "ifftn", "rfftn", "irfftn"]
REAL = ("rfft", "ihfft", "rfftn")
DTYPES = ["bool", "int16", "float16", "float32", "float64", "complex64", "complex128"]
MIB = 2**20
NORMS = ["backward", "ortho", "forward"]
# primes and twice primes, powers and products
LENGTHS = [1, 2, 3, 4, 5, 7, 13, 16, 17, 36, 62, 64, 97, 100, 101, 120, 128, 194, 210, 243, 256]


def numbers(shape: tuple[int, ...], dtype: str = "complex128") -> Any:
    rng = np.random.default_rng(sum(shape))
    values = rng.random(shape) - 0.4
    if dtype[0] == "c":
        values = values + 1j * rng.random(shape)
    return (values if dtype[0] in "fc" else 9 * values).astype(dtype)


def check(y: da.Array, a: Any, name: str, size: int, /, **arguments: Any) -> None:
    """Compare with SciPy in double precision, and each block with what was declared."""
    wide = a.astype(np.result_type(a.dtype, np.float64))
    wanted = getattr(scipy.fft, name)(wide, **arguments)
    with warnings.catch_warnings(action="ignore"):
        dtype = getattr(np.fft, name)(np.ones((2,) * a.ndim, a.dtype)).dtype
    assert (y.shape, y.dtype) == (wanted.shape, dtype)
    blocks = np.empty(y.numblocks, object)
    found = get_sync(y.dask, list(flatten(y.__dask_keys__())))
    for index, block in zip(np.ndindex(y.numblocks), found, strict=True):
        assert block.shape == tuple(sizes[at] for sizes, at in zip(y.chunks, index, strict=True))
        assert block.dtype == y.dtype
        assert type(block) is type(y._meta)
        blocks[index] = block
    close(np.block(blocks.tolist()), wanted, size)


def close(value: Any, wanted: Any, n: int) -> None:
    bound = 8 * float(np.finfo(value.dtype).eps) * max(1.0, math.log2(n))
    assert np.linalg.norm(value - wanted) <= bound * np.linalg.norm(wanted)


@st.composite
def any_chunks(draw: st.DrawFn, length: int) -> tuple[int, ...]:
    cuts = draw(st.sets(st.integers(1, length), max_size=6))
    return tuple(np.diff(sorted({0, length} | cuts)).tolist())


@st.composite
def lines(draw: st.DrawFn, dtypes: list[str] = DTYPES) -> tuple[da.Array, Any, int]:
    """Draw an array with a long axis, in NumPy too, and that axis."""
    others = draw(st.lists(st.integers(1, 3), max_size=2))
    axis = draw(st.integers(0, len(others)))
    shape = (*others[:axis], draw(st.sampled_from(LENGTHS)), *others[axis:])
    a = numbers(shape, draw(st.sampled_from(dtypes)))
    return da.from_array(a, chunks=tuple(draw(any_chunks(each)) for each in shape)), a, axis


pytestmark = pytest.mark.usefixtures("long_axes")


# Values.


@examples(200)
@given(data=st.data(), name=st.sampled_from(NAMES), norm=st.sampled_from(NORMS))
def test_any_length(data: st.DataObject, name: str, norm: str) -> None:
    real = [dtype for dtype in DTYPES if dtype[0] != "c"]
    x, a, axis = data.draw(lines(real if name in REAL else DTYPES))
    n = data.draw(st.sampled_from(LENGTHS))
    y = getattr(dgpu.fft, name)(x, n=n, axis=axis, norm=norm)
    if x.numblocks[axis] == 1:
        return  # Dask's own, which scales float16 in half precision
    check(y, a, name, n, n=n, axis=axis, norm=norm)
    assert y.numblocks[axis] <= x.numblocks[axis]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fft", "ifft"])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize(
    "n",
    [
        2**18,
        6**7,
        3 * 89041,  # a prime: by a convolution, and so the next two
        2 * 131071,
        262147,
    ],
)
def test_long(n: int, dtype: str, kind: str) -> None:
    a = numbers((n,), dtype)
    x = da.from_array(a, chunks=n // 6)
    wanted = getattr(scipy.fft, kind)(a.astype("complex128"))
    close(getattr(dgpu.fft, kind)(x).compute(), wanted, n)


@examples(100)
@given(data=st.data(), name=st.sampled_from(SEVERAL), norm=st.sampled_from(NORMS))
def test_beside_other_axes(data: st.DataObject, name: str, norm: str) -> None:
    real = [dtype for dtype in DTYPES if dtype[0] != "c"]
    x, a, long = data.draw(lines(real if name in REAL else DTYPES))
    axes = data.draw(st.permutations(range(a.ndim)))
    s = [data.draw(st.integers(1, 5)) for _ in axes]
    s[axes.index(long)] = n = data.draw(st.sampled_from(LENGTHS))
    layout = data.draw(st.sampled_from(["any", "input"]))
    with dask.config.set({"dgpu.fft.output-layout": layout}):
        y = getattr(dgpu.fft, name)(x, s=s, axes=axes, norm=norm)
    if all(x.numblocks[axis] == 1 for axis in axes):
        return  # Dask's own, which scales float16 in half precision
    check(y, a, name, max(2, n) * 25, s=s, axes=axes, norm=norm)
    for old, new in zip(x.chunks, y.chunks, strict=True):
        if layout == "input":
            assert new == old if sum(old) == sum(new) else len(new) == min(len(old), sum(new))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [None, 1, 3])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [120, 97])
def test_every_kind_by_gangs(name: str, n: int, ranks: int | None, gangs: list[str]) -> None:
    a = numbers((2, n), "float64" if name in REAL else "complex128")
    x = da.from_array(a, chunks=(2, 20))
    y = getattr(dgpu.fft, name)(x, n=n)
    wanted = getattr(scipy.fft, name)(a, n=n)
    if ranks is None:
        close(y.compute(scheduler="synchronous"), wanted, n)
        assert gangs == []
        return
    with dgpu.enable(local_ranks=ranks, on_error="raise", when="always"):
        close(y.compute(scheduler="synchronous"), wanted, n)
    (gang,) = gangs  # one transform per axis of a matrix, and rechunks
    transforms = [each for each in gang.split(", ") if each.startswith(("fft", "ifft"))]
    assert len(transforms) == (2 if n == 120 else 5), gangs


# How much is in one place.


class Largest(Callback):
    """The most elements that an array along the way has."""

    def __init__(self) -> None:
        super().__init__(posttask=self.see)
        self.elements = 0

    def see(self, key: Any, result: Any, dsk: Any, state: Any, worker: Any) -> None:
        self.elements = max(self.elements, getattr(result, "size", 0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "times"),
    [
        (2**16, 1.0),
        (60_000, 1.1),
        (65537, 2.2),
        (131074, 2.2),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_no_block_is_much_larger_than_the_share(name: str, n: int, times: float) -> None:
    parts = 16
    length = n // 2 + 1 if name in ("irfft", "hfft") else n
    a = numbers((length,), "float64" if name in REAL else "complex128")
    x = da.from_array(a, chunks=-(-length // parts)).persist()
    # Dask's own rechunk goes by larger blocks, of up to this size
    with dask.config.set({"array.chunk-size": "1 B"}), Largest() as seen:
        y = getattr(dgpu.fft, name)(x, n=n)
        get_sync(y.dask, list(flatten(y.__dask_keys__())))
    row = 1 + 2 * math.isqrt(2 * n)
    assert seen.elements <= times * n / parts + row
    assert seen.elements >= y.size // parts
    sizes = y.chunks[0]
    assert len(sizes) == parts
    assert max(sizes) - min(sizes) <= row


def test_cuts_that_fit_move_nothing_before_the_first_transform() -> None:
    y = dgpu.fft.fft(da.ones(2**16, chunks=2**12))
    exchanges = sum(name.startswith("fft") for name in y.dask.layers)
    assert exchanges == 2
    assert not any(name.startswith("rechunk") for name in y.dask.layers)
    assert y.chunks == ((2**12,) * 16,)


@pytest.mark.parametrize("n", [2**26, 3**8 * 10**4])
@pytest.mark.parametrize("name", NAMES)
def test_programs_hold_three_shares_and_the_graph_is_small(name: str, n: int) -> None:
    parts, size = 16, 4
    length = n // 2 + 1 if name in ("irfft", "hfft") else n
    dtype = "float64" if name in REAL else "complex128"
    x = da.zeros(length, chunks=-(-length // parts), dtype=dtype)
    y = getattr(dgpu.fft, name)(x, n=n)
    for layer in y.dask.layers.values():
        assert not layer.is_materialized() or len(layer) <= parts
    with dgpu.enable(local_ranks=size, on_error="raise", when="always") as enabled:
        ((_, predicted),) = enabled.optimizer.rewrite(y.dask, y.__dask_keys__()).regions
    share = n * 16 // size  # of complex numbers
    assert predicted.peak_bytes <= 3.01 * share + 64 * MIB
    assert predicted.tasks == parts + 1  # the zeros are made in the gang too


# Plans.


@pytest.mark.parametrize(
    ("n", "chunk"),
    [
        (10**8, 10**7),
        (2**16, 2**12),
        (2**20, 3 * 2**16),
        (30**4, 9 * 10**4),
        (24 * 10**6, 10**6),
        (10**6 + 3, 10**5),  # a prime
        (2 * 1000003, 10**5),
    ],
)
def test_blocks_of_the_result_are_as_long_as_those_of_the_input(n: int, chunk: int) -> None:
    x = da.zeros(n, chunks=chunk)
    y = dgpu.fft.fft(x)
    assert y.numblocks == x.numblocks
    assert max(y.chunks[0]) <= 1.01 * chunk


def test_planning_huge_lengths_is_quick() -> None:
    start = time.perf_counter()
    for n in (10**11, 2**40, 999_999_999_989, 2**36 * 81):
        x = da.zeros(n, chunks=-(-n // 1000), dtype="complex64")
        y = dgpu.fft.fft(x)
        assert (y.shape, y.dtype, y.numblocks) == (x.shape, x.dtype, x.numblocks)
        assert max(y.chunks[0]) < 1.1 * x.chunksize[0]
    assert time.perf_counter() - start < 5


ONES = (1000,) * 10
PLANS: dict[str, tuple[Any, dict[int, int], tuple[int, ...]]] = {
    "one axis": ((ONES,), {0: 10_000}, (10,)),
    "two blocks": (((1000, 1000),), {0: 2000}, (2,)),
    "two blocks, an odd length": (((1001, 1000),), {0: 2001}, (2,)),
    "one large block": (((1000, 300, 300),), {0: 1600}, (3,)),
    "one block": (((1000,),), {0: 1000}, (1,)),
    "one block is nearly all": (((1000, 10),), {0: 1010}, (1,)),
    "three lines": (((1, 1, 1), ONES), {1: 10_000}, (3, 10)),
    "half as many": (((5,), ONES), {1: 10_000}, (1, 10)),
    "enough lines": (((6,), ONES), {1: 10_000}, (6, 1)),
    "slabs": (((100,) * 4, (400,)), {0: 400, 1: 400}, (1, 4)),
    "pencils": (((20,) * 5, (20,) * 5), {0: 100, 1: 100}, (25, 1)),
    "the longer one": (((2, 2), ONES), {0: 4, 1: 10_000}, (1, 20)),
    "cropped to one block": ((ONES,), {0: 1500}, (1,)),
    "padded": (((10, 10),), {0: 10_000}, (2,)),
    "empty": (((0,), (10, 10)), {1: 20}, (1, 1)),
}
"""Chunks, the length of the transform along each axis, and the blocks of the result."""


@pytest.mark.parametrize("case", PLANS)
def test_an_axis_is_split_if_a_block_would_be_too_large(case: str) -> None:
    chunks, lengths, blocks = PLANS[case]
    x = da.zeros(tuple(map(sum, chunks)), chunks=chunks)
    assert dgpu.fft.fftn(x, s=[*lengths.values()], axes=[*lengths]).numblocks == blocks


@pytest.mark.parametrize(("nbytes", "blocks"), [(16_000, 1), (15_999, 10)])
def test_small_arrays_are_gathered(nbytes: int, blocks: int) -> None:
    """Of 1000 complex numbers."""
    with largest_of_a_block(nbytes):
        assert dgpu.fft.fft(da.ones(1000, chunks=100)).numblocks == (blocks,)


@pytest.mark.parametrize("name", NAMES)
def test_empty(name: str) -> None:
    x = da.zeros((0, 6), chunks=(1, 2))
    y = getattr(dgpu.fft, name)(x, n=8)
    wanted = getattr(np.fft, name)(np.zeros((0, 6)), n=8)
    np.testing.assert_array_equal(y.compute(), wanted, strict=True)
    x = da.ones(6, chunks=2)[:0]
    with pytest.raises(ValueError, match="0 elements"):
        dgpu.fft.fft(x)
    assert tuple(accumulate(dgpu.fft.fft(x, n=5).chunks[0]))[-1] == 5
