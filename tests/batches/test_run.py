"""Host arrays through operations in one, a few and many batches, against NumPy and SciPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft
import scipy.ndimage
import torch
import zarr

import dask_dgpu as dgpu
from tests.support.memory import bounded

RNG = np.random.default_rng(0)
A, B = RNG.random((71, 30)), RNG.random((30, 53))
STACK, VECTOR = RNG.random((5, 19, 30)), RNG.random(30)
IMAGES, KERNELS, BIAS = RNG.random((7, 3, 11, 10)), RNG.random((4, 3, 3, 3)), RNG.random(4)


def correlated(mode: str, iterations: int) -> Any:
    x = A
    for _ in range(iterations):
        x = scipy.ndimage.correlate(x, dgpu.LAPLACIAN_5PT, mode=mode, cval=0)
    return x


def convolved() -> Any:
    tensors = map(torch.from_numpy, (IMAGES, KERNELS, BIAS))
    return torch.nn.functional.conv2d(*tensors, stride=2, padding=1).numpy()


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(0.79788456 * (x + 0.044715 * x**3)))


Case = tuple[Any, tuple[Any, ...], dict[str, Any], Callable[[], Any]]
QUICK: dict[str, Case] = {
    "product": ("matmul", (A, B), {}, lambda: A @ B),
    "reduction": ("mean", (STACK,), {"axis": (0, 2)}, lambda: STACK.mean((0, 2))),
    "elementwise": ("add", (STACK, VECTOR), {}, lambda: STACK + VECTOR),
}
SLOW: dict[str, Case] = {
    "halo": ("stencil", (A,), {"boundary": "periodic"}, lambda: correlated("wrap", 1)),
    "transform": ("fft", (STACK,), {"axis": 1}, lambda: np.fft.fft(STACK, axis=1)),
    "product of stacks": ("matmul", (STACK, STACK.mT), {}, lambda: STACK @ STACK.mT),
    "broadcast product": ("matmul", (STACK, B), {}, lambda: STACK @ B),
    "broadcast stack": ("matmul", (STACK[:1], STACK.mT), {}, lambda: STACK[:1] @ STACK.mT),
    "matrix and vector": ("matmul", (A, VECTOR), {}, lambda: A @ VECTOR),
    "vector and matrix": ("matmul", (VECTOR, B), {}, lambda: VECTOR @ B),
    "vectors": ("matmul", (A.ravel(), A.ravel()), {}, lambda: A.ravel() @ A.ravel()),
    "tall": ("matmul", (A.T, A), {}, lambda: A.T @ A),
    "numpy.matmul": (np.matmul, (A, B), {}, lambda: A @ B),
    "dot": ("dot", (STACK, B), {}, lambda: np.dot(STACK, B)),
    "dot of stacks": ("dot", (STACK, STACK.mT), {}, lambda: np.dot(STACK, STACK.mT)),
    "tensordot": (
        "tensordot",
        (STACK, STACK),
        {"axes": ([0, 2], [0, 2])},
        lambda: np.tensordot(STACK, STACK, axes=([0, 2], [0, 2])),
    ),
    "tensordot of last axes": (
        "tensordot",
        (STACK, B.T),
        {"axes": ([-1], [-1])},
        lambda: np.tensordot(STACK, B.T, axes=([-1], [-1])),
    ),
    "tensordot by number": (np.tensordot, (A, B, 1), {}, lambda: np.tensordot(A, B, 1)),
    "einsum": ("einsum", ("bij,jk->ibk", STACK, B), {}, lambda: np.einsum("bij,jk->ibk", STACK, B)),
    "einsum of lists": ("einsum", (A, [0, 1], B, [1, 2]), {}, lambda: A @ B),
    "diagonal": ("einsum", ("ii->i", A[:30]), {}, lambda: A[:30].diagonal()),
    "trace": ("einsum", ("ii", A[:30]), {}, lambda: np.trace(A[:30])),
    "three operands": ("einsum", ("ij,jk,k", A, B, B[0]), {}, lambda: A @ B @ B[0]),
    "fft2": ("fft2", (STACK,), {}, lambda: np.fft.fft2(STACK)),
    "numpy.fft": (np.fft.rfft, (STACK,), {"n": 17}, lambda: np.fft.rfft(STACK, n=17)),
    "irfftn": ("irfftn", (STACK,), {"axes": (2,)}, lambda: np.fft.irfftn(STACK, axes=(2,))),
    "dct": ("dct", (STACK,), {"norm": "ortho"}, lambda: scipy.fft.dct(STACK, norm="ortho")),
    "sum": ("sum", (STACK,), {}, lambda: STACK.sum()),
    "numpy.sum": (
        np.sum,
        (STACK,),
        {"axis": 1, "keepdims": True},
        lambda: STACK.sum(1)[:, None],
    ),
    "integers": ("sum", (STACK.view("i8"),), {"axis": 0}, lambda: STACK.view("i8").sum(0)),
    "max": ("max", (-STACK,), {}, lambda: (-STACK).max()),
    "min": (da.min, (STACK,), {"axis": 2}, lambda: STACK.min(2)),
    "ufunc": (np.arctan2, (STACK, 0.5), {}, lambda: np.arctan2(STACK, 0.5)),
    "Dask's ufunc": (da.sin, (STACK,), {}, lambda: np.sin(STACK)),
    "outer": ("multiply", (A[:, :1], A[:1]), {}, lambda: A[:, :1] * A[:1]),
    "gelu": (dgpu.gelu, (STACK,), {}, lambda: gelu(STACK)),
    "conv2d": ("conv2d", (IMAGES, KERNELS, BIAS), {"stride": 2, "padding": 1}, convolved),
    "conv2d by name": (
        dgpu.conv2d,
        (IMAGES,),
        {"weight": KERNELS, "bias": BIAS, "stride": 2, "padding": 1},
        convolved,
    ),
    "far halo": (
        "stencil",
        (A,),
        {"boundary": "reflect", "iterations": 4},
        lambda: correlated("reflect", 4),
    ),
    "kernel": ("stencil", (A, dgpu.LAPLACIAN_5PT), {}, lambda: correlated("constant", 1)),
    "function": (lambda x, y: (x + y) * 2 - x.mean(), (STACK, VECTOR), {}, lambda: _function()),
    "deviation": (np.std, (STACK,), {"axis": 0}, lambda: STACK.std(0)),
}
CASES = [
    *(pytest.param(case, id=name) for name, case in QUICK.items()),
    *(pytest.param(case, id=name, marks=pytest.mark.slow) for name, case in SLOW.items()),
]


def _function() -> Any:
    return (STACK + VECTOR) * 2 - STACK.mean()


def close(found: Any, expected: Any) -> None:
    """Compare values within rounding, shape and dtype."""
    assert np.shape(found) == np.shape(expected)
    assert found.dtype == expected.dtype
    eps = np.finfo(expected.dtype).eps if expected.dtype.kind in "fc" else 0
    scale = np.abs(expected).max() if np.size(expected) else 0
    np.testing.assert_allclose(found, expected, rtol=100 * eps, atol=100 * eps * scale)


@pytest.mark.parametrize("case", CASES)
def test_equals_numpy_in_any_number_of_batches(case: Case) -> None:
    op, args, options, oracle = case
    expected = np.asarray(oracle())[()]
    planned = partial(dgpu.plan, op, *args, **options)
    counts = []
    with bounded(None):
        whole = planned()
    for share in (1.0, 0.6, 0.25):
        with bounded(whole.peak_bytes * share):
            found = planned()
            if not found.feasible:
                assert share < 0.6
                with pytest.raises(dgpu.errors.DgpuError, match="its smallest batch needs"):
                    dgpu.run(op, *args, **options)
                continue
            assert found.whole or found.peak_bytes <= whole.peak_bytes * share
            counts.append(found.batches)
            close(dgpu.run(op, *args, **options), expected)
    assert counts[0] == 1 or whole.whole
    assert counts == sorted(counts)
    assert len(counts) < 2 or counts[-1] > 1 or whole.whole


VARIANTS: dict[str, Callable[[Any, Path], Any]] = {
    "Fortran order": lambda x, path: np.asfortranarray(x),
    "other byte order": lambda x, path: x.astype(x.dtype.newbyteorder()),
    "negative strides": lambda x, path: x[::-1, ::-1].copy()[::-1, ::-1],
    "memory map": lambda x, path: _mapped(x, path / f"{len(x)}.npy"),
    "zarr": lambda x, path: zarr.array(x, chunks=(7, 9)),
    "HDF5": lambda x, path: Dataset(x),
    "Dask array": lambda x, path: da.from_array(x, chunks=(20, 11)),
}


class Dataset:
    """What HDF5 datasets offer: shape, dtype, and slices as NumPy arrays."""

    def __init__(self, values: Any) -> None:
        self.values = values
        self.shape = values.shape
        self.dtype = values.dtype

    def __getitem__(self, key: Any) -> Any:
        assert all(0 <= part.start <= part.stop for part in key)
        return self.values[key].copy()

    def __setitem__(self, key: Any, value: Any) -> None:
        self.values[key] = value


def _mapped(x: Any, path: Path) -> Any:
    np.save(path, x)
    return np.load(path, mmap_mode="r")


@pytest.mark.parametrize(
    "variant",
    [each if each == "zarr" else pytest.param(each, marks=pytest.mark.slow) for each in VARIANTS],
)
def test_any_host_array(variant: str, tmp_path: Path) -> None:
    x, y = (VARIANTS[variant](each, tmp_path) for each in (A, B))
    with bounded(30_000):
        assert dgpu.plan("matmul", x, y).batches > 1
        close(dgpu.run("matmul", x, y), A @ B)
        close(dgpu.run("stencil", x, boundary="periodic"), correlated("wrap", 1))


def test_operands_stay_as_they_are() -> None:
    x, before = A.copy(), A.copy()
    x.flags.writeable = False
    with bounded(30_000):
        close(dgpu.run("exp", x), np.exp(A))
        result = dgpu.run(lambda x: x, A)
    assert not np.shares_memory(result, A)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("make", [np.empty, zarr.zeros, lambda *args: Dataset(np.empty(*args))])
def test_result_goes_to_out(make: Callable[..., Any], tmp_path: Path) -> None:
    out = make((71, 53))
    with bounded(40_000):
        assert dgpu.run("matmul", A, B, out=out) is out
    close(np.asarray(out[:71, :53]) if not isinstance(out, Dataset) else out.values, A @ B)


def test_result_goes_to_a_memory_map(tmp_path: Path) -> None:
    out = np.lib.format.open_memmap(tmp_path / "out.npy", "w+", np.float32, (71, 53))
    with bounded(40_000):
        dgpu.run("matmul", A, B, out=out)
    close(np.load(tmp_path / "out.npy"), (A @ B).astype("f4"))


@pytest.mark.parametrize("op", ["exp", pytest.param("gelu", marks=pytest.mark.slow)])
def test_elementwise_work_has_the_same_bits_in_any_batches(op: str) -> None:
    results = []
    for limit in (None, 60_000, 9_000):
        with bounded(limit):
            results.append(dgpu.run(op, A.astype("f4")).tobytes())
    assert len(set(results)) == 1


@pytest.mark.slow
def test_reproducible_sums_have_the_same_bits() -> None:
    x = RNG.standard_normal(30_000).astype("f4") * 10.0 ** RNG.integers(-9, 9, 30_000)
    sums = []
    for limit in (None, 200_000, 20_000):
        with bounded(limit):
            sums.append(dgpu.run("sum", x, method="reproducible"))
    assert len(set(sums)) == 1


@pytest.mark.parametrize(
    "values",
    [[np.inf, 1], [np.inf, -np.inf], [np.nan, 1], [1e20, 1, -1e20]],
    ids=str,
)
def test_sums_of_special_values(values: list[float]) -> None:
    x = np.zeros(4000)
    x[:: 4000 // len(values)][: len(values)] = values  # in different batches
    with bounded(12_000), np.errstate(all="ignore"):
        assert dgpu.plan("sum", x).batches > 2
        found = dgpu.run("sum", x)
        expected = math.fsum(values) if all(map(math.isfinite, values)) else np.sum(values)
    np.testing.assert_equal(found, expected)


def test_half_precision_is_added_in_single() -> None:
    x = np.full((3, 4096), 0.1, "f2")
    with bounded(9_000):
        assert dgpu.plan("matmul", x, x.T).batches > 4
        found = dgpu.run("matmul", x, x.T)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, x.astype(float) @ x.T.astype(float), rtol=2e-3)


@pytest.mark.parametrize(
    ("ranks", "limit"),
    [(1, None), (3, None), pytest.param(3, 4_000, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("strategy", ["row", "column", "summa", "inner"])
def test_strategies_hold_where_a_batch_has_something_to_divide(
    strategy: str, ranks: int, limit: float | None
) -> None:
    with dgpu.enable(local_ranks=ranks, when="always", memory_limit=limit):
        for a, b in ((A, B), (A[:1], B), (A, VECTOR), (VECTOR, B[:, :1])):
            close(dgpu.run("matmul", a, b, strategy=strategy), a @ b)


@pytest.mark.parametrize("kind", ["?", "i1", "i4", "u2", "f2", "f4", "c8"])
@pytest.mark.parametrize("limit", [None, 1_000])
def test_dtypes_are_those_of_numpy(kind: str, limit: float | None) -> None:
    x, y = RNG.integers(0, 3, (2, 9, 9)).astype(kind)
    calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (np.matmul, (x, y), {}),
        (np.dot, (x, y), {}),
        (np.tensordot, (x, y), {"axes": 1}),
        (np.einsum, ("ij,jk", x, y), {}),
        (np.sum, (x,), {"axis": 0}),
        (np.mean, (x,), {"axis": 1}),
        (np.add, (x, y), {}),
        (np.multiply, (x, 100), {"dtype": "c16"}),
    ]
    with bounded(limit):
        for function, args, options in calls:
            close(dgpu.run(function, *args, **options), function(*args, **options))


def test_ufuncs_compute_in_their_dtype() -> None:
    x = np.arange(100, dtype="i1")
    np.testing.assert_array_equal(dgpu.run("add", x, x, dtype="i8"), np.add(x, x, dtype="i8"))
    chosen = x > 50
    found = dgpu.run("exp", x, dtype="f8", where=chosen)
    np.testing.assert_allclose(found[chosen], np.exp(x[chosen], dtype="f8"), rtol=1e-14)
    with pytest.raises(TypeError, match="Cannot cast ufunc 'add' input 0"):
        dgpu.run("add", x, x, dtype="?")


@pytest.mark.parametrize("limit", [None, 20_000, 2_000])
def test_means_as_integers(limit: float | None) -> None:
    x = RNG.integers(-1000, 3000, (7, 301))
    with bounded(limit):
        for op in ("mean", np.mean, da.mean):
            assert dgpu.run(op, x, dtype="i8") == np.mean(x, dtype="i8")
            found = dgpu.run(op, x, axis=0, dtype="i4")
            np.testing.assert_array_equal(found, np.mean(x, axis=0, dtype="i4"), strict=True)


@pytest.mark.parametrize(
    ("op", "shapes", "shape"),
    [
        ("matmul", [(0, 4), (4, 3)], (0, 3)),
        ("matmul", [(3, 0), (0, 4)], (3, 4)),
        ("fft", [(0, 4)], (0, 4)),
        ("exp", [(3, 0)], (3, 0)),
        ("sum", [(3, 0)], ()),
        ("stencil", [(0, 0)], (0, 0)),
    ],
)
def test_empty_arrays(op: str, shapes: list[tuple[int, ...]], shape: tuple[int, ...]) -> None:
    options = {"kernel": np.ones((1, 1))} if op == "stencil" else {}
    found = dgpu.run(op, *map(np.zeros, shapes), **options)
    assert np.shape(found) == shape
    assert not np.any(found)


def test_a_batch_that_fails_leaves_the_rest_of_out() -> None:
    class Failing(Dataset):
        def __getitem__(self, key: Any) -> Any:
            if key[0].start >= 30:
                raise OSError("unreadable")
            return super().__getitem__(key)

    out = np.full((71, 53), -1.0)
    with bounded(40_000):
        rows = dgpu.plan("matmul", A, B).rows
        with pytest.raises(OSError, match="unreadable") as caught:
            dgpu.run("matmul", Failing(A), B, out=out)
    (note,) = caught.value.__notes__
    written = int(note.split()[1])
    assert written >= 1
    done = np.nonzero((out != -1).all(axis=1))[0]
    assert abs(len(done) - written * rows) <= written
    close(out[done], (A @ B)[done])
    assert (np.delete(out, done, axis=0) == -1).all()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: dgpu.run("matmull", A, B), ValueError, "did you mean 'matmul'"),
        (lambda: dgpu.run(3, A), TypeError, "expected op to be the name"),
        (lambda: dgpu.run("exp", 1.0), TypeError, "at least one array with axes, got"),
        (lambda: dgpu.run("exp", np.ma.ones(3)), TypeError, r"expected arrays\[0\] to be a NumPy"),
        (lambda: dgpu.run("exp", A.astype(object)), TypeError, "of numbers, got object"),
        (lambda: dgpu.run("matmul", A), TypeError, "arguments of matmul"),
        (lambda: dgpu.run("matmul", A, A), ValueError, "of equal inner lengths"),
        (lambda: dgpu.run("sum", A, where=A > 0), TypeError, "arguments of sum"),
        (lambda: dgpu.run("exp", A, out=np.empty(3)), ValueError, r"out of shape \(71, 30\)"),
        (lambda: dgpu.run("exp", A, out=np.empty(A.shape, int)), TypeError, "out of a dtype"),
        (lambda: dgpu.run("exp", A, out=A), ValueError, "out not to share memory"),
        (lambda: dgpu.run("exp", A, out=[1]), TypeError, "expected out to be a writable"),
        (lambda: dgpu.run(lambda x: (x, x), A), TypeError, "returns one array, got .* tuple$"),
        (lambda: dgpu.run(lambda x: "text", A), TypeError, "returns one array, got .* str$"),
        (lambda: dgpu.run(lambda x: b"text", A), TypeError, "returns one array, got .* bytes$"),
        (lambda: dgpu.run(lambda x: None, A), TypeError, "returns one array, got .* NoneType$"),
        (lambda: dgpu.run(lambda x: {1.0}, A), TypeError, "returns one array, got .* set$"),
        (lambda: dgpu.run("exp", A, client=3), TypeError, "expected client to be"),
        (lambda: dgpu.run("exp", A, progress="no"), TypeError, "expected progress to be"),
        (lambda: dgpu.run("exp", np.array(2.0)), TypeError, "at least one array with axes, got"),
        (lambda: dgpu.run("tensordot", A, A, axes=1), ValueError, "equal lengths along the contr"),
        (lambda: dgpu.run("tensordot", A, B, ((2,), (0,))), ValueError, r"axes=\(\(2,\), \(0,\)\)"),
        (lambda: dgpu.run("matmul", A, B, strategy="rows"), ValueError, "unknown strategy 'rows'"),
        (lambda: dgpu.plan("exp", (3, -1)), ValueError, "at least 0"),
        (lambda: dgpu.plan("sum", (3, 4), dtype=object), TypeError, "dtype to be of numbers, got"),
        (lambda: dgpu.plan("sum", (3, 4), dtype="f5"), TypeError, "dtype to be of numbers, got f5"),
    ],
)
def test_bad_arguments(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_read_only_out_is_refused() -> None:
    out = np.empty(A.shape)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out to be writable"):
        dgpu.run("exp", A, out=out)


def test_blocks_of_another_shape_are_not_broadcast() -> None:
    def added(x: Any) -> Any:
        return x.map_blocks(lambda block: block.sum(axis=0, keepdims=True), dtype=float)

    with pytest.raises(ValueError, match=r"expected a block of shape \(71, 30\), got \(1, 30\)"):
        dgpu.run(added, A)


def test_functions_that_compute_at_once() -> None:
    close(dgpu.run(lambda x: np.linalg.norm(np.asarray(x)), A), np.linalg.norm(A))
    close(dgpu.run(lambda x: x[x > 0.5], A), A[A > 0.5])


def test_functions_may_keep_what_they_compute() -> None:
    kept, by_name = [], {}

    def running_total(x: Any) -> Any:
        kept.append(x.sum().persist(scheduler="threads"))
        by_name.setdefault(x.name, x.sum().compute())
        return x * 0 + da.stack(kept).sum() + by_name[x.name]

    x, total = np.empty((30, 20)), 0.0
    for value in range(4):  # equal addresses, other values
        x[...] = value
        for each in (x, np.full((30, 20), float(value))):
            total += each.sum()
            found = dgpu.run(running_total, each)
            np.testing.assert_array_equal(found, np.full((30, 20), total + each.sum()))


def test_functions_return_arrays_of_dask() -> None:
    for wrong in (lambda x: x.to_delayed()[0, 0], lambda x: x.to_delayed().ravel()[0].sum()):
        with pytest.raises(TypeError, match="expected op to be a function that returns one array"):
            dgpu.run(wrong, A)


def test_threads_leave_the_settings() -> None:
    before = dask.config.get("array.chunk-size")
    with bounded(10_000_000):
        dgpu.run_many(lambda x: x - dgpu.fft.fft2(x).real.mean(), [(A,)] * 8)
    assert dask.config.get("array.chunk-size") == before
