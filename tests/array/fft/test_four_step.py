"""Transforms along an axis of which no block has all, against SciPy."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
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
from dask_dgpu.algorithms.pencil_fft.plan import even_chunks, plan_pencil_fft
from dask_dgpu.algorithms.pencil_fft.rank import peak, plan_on_ranks
from dask_dgpu.array.fft import call, long_axis
from dask_dgpu.array.fft.four_step import (
    Matrix,
    four_step,
    matrix_for,
    row_cuts,
)
from dask_dgpu.array.fft.long_axis import bluestein, convolution_matrix
from dask_dgpu.kernels.fft import Transform
from graph_opt.dask_graph.layers import DeferredLayer
from graph_opt.model.cost import HOST
from graph_opt.model.layout import Layout, cuts_of, dealt
from tests.algorithms.test_pencil_fft_rank import in_order
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


@pytest.fixture(scope="module", autouse=True)
def always() -> Iterator[None]:
    """No block is small enough."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_axis, "SMALL", 0)
        yield


# Values.


@examples(200)
@given(data=st.data(), name=st.sampled_from(NAMES), norm=st.sampled_from(NORMS))
def test_any_length(data: st.DataObject, name: str, norm: str) -> None:
    real = [dtype for dtype in DTYPES if dtype[0] != "c"]
    x, a, axis = data.draw(lines(real if name in REAL else DTYPES))
    n = data.draw(st.sampled_from(LENGTHS))
    y = long_axis.along_long_axis(x, Transform(name, axis, n, norm))
    check(y, a, name, n, n=n, axis=axis, norm=norm)
    assert y.numblocks[axis] <= x.numblocks[axis]


@examples(100)
@given(
    data=st.data(),
    kind=st.sampled_from(["fft", "ifft"]),
    matrix=st.builds(Matrix, st.integers(1, 16), st.integers(1, 16)),
    parts=st.integers(1, 7),
)
def test_any_matrix(data: st.DataObject, kind: str, matrix: Matrix, parts: int) -> None:
    x, a, axis = data.draw(lines())
    length = data.draw(st.integers(1, matrix.n))
    y = four_step(x, Transform(kind, axis, matrix.n), matrix, parts=parts, length=length)
    kept = (slice(None),) * axis + (slice(0, length),)
    wide = a.astype(np.result_type(a.dtype, np.float64))
    close(y.compute(), getattr(scipy.fft, kind)(wide, n=matrix.n, axis=axis)[kept], 8 * matrix.n)
    assert y.numblocks[axis] == min(parts, -(-length // matrix.rows))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fft", "ifft"])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize(
    "n",
    [
        2**18,
        6**7,
        3 * 89041,
        2 * 131071,
        262147,
    ],
)
def test_long(n: int, dtype: str, kind: str) -> None:
    a = numbers((n,), dtype)
    transform = Transform(kind, 0, n)
    x = da.from_array(a, chunks=n // 6)
    wanted = getattr(scipy.fft, kind)(a.astype("complex128"))
    close(long_axis.along_long_axis(x, transform).compute(), wanted, n)
    close(bluestein(x, transform, parts=7, length=n).compute(), wanted, n)


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
    x = da.zeros(length, chunks=(even_chunks(length, parts),), dtype=dtype)
    y = getattr(dgpu.fft, name)(x, n=n)
    share = n * 16 // size  # of complex numbers
    for layer in y.dask.layers.values():
        if isinstance(layer, DeferredLayer):
            chunks = layer.piece.source.chunks
            blocks = math.prod(map(len, chunks))
            source = Layout(tuple(map(cuts_of, chunks)), dealt(blocks, size))
            ranked = plan_on_ranks(layer.piece.plan, source, size, HOST, in_order(size))
            assert peak(ranked) <= 3.01 * share + 64 * MIB
            assert not layer.is_materialized()
        elif layer.is_materialized():
            assert len(layer) <= parts
    with dgpu.enable(local_ranks=size, on_error="raise", when="always") as enabled:
        ((_, predicted),) = enabled.optimizer.rewrite(y.dask, y.__dask_keys__()).regions
    assert predicted.peak_bytes <= 3.01 * share + 64 * MIB
    assert predicted.tasks == parts + 1  # the zeros are made in the gang too


# Plans.


@examples(300)
@given(
    n=st.integers(1, 5000) | st.integers(1, 10**9),
    parts=st.integers(1, 40),
    enough=st.sampled_from([0, 1, 100]),
)
def test_matrices(n: int, parts: int, enough: int) -> None:
    def largest(side: int) -> int:
        return -(-side // min(side, parts)) * (n // side)

    divisors = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    possible = [
        d
        for d in divisors
        if all(largest(side) * parts < 2 * n or largest(side) <= enough for side in (d, n // d))
    ]
    matrix = matrix_for(n, parts, enough=enough)
    assert (matrix is None) == (not possible)
    if matrix is not None:
        assert matrix.n == n
        assert min(matrix.rows, matrix.columns) in possible


@pytest.mark.parametrize(
    ("n", "chunk", "matrix"),
    [
        (10**8, 10**7, Matrix(10**4, 10**4)),
        (2**16, 2**12, Matrix(256, 256)),
        (2**20, 3 * 2**16, Matrix(2**10, 2**10)),
        (30**4, 9 * 10**4, Matrix(900, 900)),
        (24 * 10**6, 10**6, Matrix(4800, 5000)),  # of (4898, 4900) no cut is at a row
        (10**6 + 3, 10**5, None),
        (2 * 1000003, 10**5, None),
    ],
)
def test_chosen_matrices(n: int, chunk: int, matrix: Matrix | None) -> None:
    cuts = list(range(chunk, n, chunk))
    assert matrix_for(n, len(cuts) + 1, cuts) == matrix


def test_planning_huge_lengths_is_quick() -> None:
    start = time.perf_counter()
    for n in (2**40, 10**12, 999_999_999_989, 2**36 * 81):
        cuts = [n // 1000 * part for part in range(1, 1000)]
        matrix = matrix_for(n, 1000, cuts)
        assert (matrix is None) == (n % 2 == 1)
        assert convolution_matrix(n).n < 2.01 * n
    assert time.perf_counter() - start < 5
    x = da.zeros(10**11, chunks=10**8, dtype="complex64")
    y = dgpu.fft.fft(x)
    assert (y.shape, y.dtype, y.numblocks) == (x.shape, x.dtype, x.numblocks)
    assert max(y.chunks[0]) < 1.1 * 10**8


@given(n=st.integers(1, 10**10))
def test_convolutions(n: int) -> None:
    matrix = convolution_matrix(n)
    assert 2 * n - 1 <= matrix.n <= 2 * n * 1.1 + 30
    assert 0.5 < matrix.rows / matrix.columns < 2.5
    for side in (matrix.rows, matrix.columns):
        assert scipy.fft.next_fast_len(side) == side


@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(any),
    width=st.integers(1, 20),
    data=st.data(),
)
def test_row_cuts(sizes: list[int], width: int, data: st.DataObject) -> None:
    length = data.draw(st.integers(1, sum(sizes)))
    new = row_cuts(sizes, length, width)
    assert sum(new) == length
    assert all(size > 0 for size in new)
    assert all(size % width == 0 for size in new[:-1])
    assert max(new) < max(sizes) + width
    if all(size % width == 0 for size in sizes) and length == sum(sizes):
        assert new == tuple(size for size in sizes if size)


PLANS: dict[str, tuple[Any, list[Transform], int | None]] = {
    "one axis": (((1000,) * 10,), [Transform("fft", 0, 10_000)], 0),
    "two blocks": (((1000, 1000),), [Transform("fft", 0, 2000)], 0),
    "two blocks, an odd length": (((1001, 1000),), [Transform("fft", 0, 2001)], 0),
    "one large block": (((1000, 300, 300),), [Transform("fft", 0, 1600)], 0),
    "one block": (((1000,),), [Transform("fft", 0, 1000)], None),
    "one block is nearly all": (((1000, 10),), [Transform("fft", 0, 1010)], None),
    "three lines": (((1, 1, 1), (1000,) * 10), [Transform("fft", 1, 10_000)], 1),
    "half as many": (((5,), (1000,) * 10), [Transform("fft", 1, 10_000)], 1),
    "enough lines": (((6,), (1000,) * 10), [Transform("fft", 1, 10_000)], None),
    "slabs": (((100,) * 4, (400,)), [Transform("fft", 0, 400), Transform("fft", 1, 400)], None),
    "pencils": (
        ((20,) * 5, (20,) * 5),
        [Transform("rfft", 1, 100), Transform("fft", 0, 100)],
        None,
    ),
    "the longer one": (
        ((2, 2), (1000,) * 10),
        [Transform("fft", 0, 4), Transform("irfft", 1, 10_000)],
        1,
    ),
    "cropped to one block": (((1000,) * 10,), [Transform("fft", 0, 1500)], None),
    "padded": (((10, 10),), [Transform("fft", 0, 10_000)], 0),
    "empty": (((0,), (10, 10)), [Transform("fft", 1, 20)], None),
    "nothing": (((10, 10),), [], None),
}


@pytest.mark.parametrize("case", PLANS)
def test_when_a_plan_will_not_do(case: str) -> None:
    chunks, transforms, axis = PLANS[case]
    plan = plan_pencil_fft(chunks, "float64", transforms)
    assert call.too_long(plan, small=0) == axis
    assert call.too_long(plan, small=10**9) is None


def test_small_arrays_are_gathered() -> None:
    x = da.ones(1000, chunks=100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_axis, "SMALL", 16_000)  # bytes of the result
        assert dgpu.fft.fft(x).numblocks == (1,)
        patch.setattr(long_axis, "SMALL", 15_999)
        assert dgpu.fft.fft(x).numblocks == (10,)


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
