"""What Dask builds for a product, a contraction, a rechunk or an overlap is found, and no more.

``explain`` says what was found or why not, and results are those of plain Dask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.graph_manipulation import bind, clone

import dask_dgpu as dgpu

SLOW = partial(pytest.param, marks=pytest.mark.slow)
FIELDS = {
    "matmul": "mesh",
    "contract": "subscripts",
    "rechunk": "rounds",
    "overlap": "boundary",
}
"""Of each operation a field that the facts of an explanation have for it."""


class Found:
    """What an explanation says of some arrays, of which it has computed the values too."""

    def __init__(self, *arrays: da.Array, expected: Any = None) -> None:
        expected = expected or dask.compute(*arrays, scheduler="sync")
        with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
            found = dgpu.explain(*arrays).to_dict()
            values = dask.compute(*arrays, scheduler="sync")
        for value, wanted in zip(values, expected, strict=True):
            assert type(value) is type(wanted)
            if wanted.dtype.names or wanted.dtype.kind == "O":
                np.testing.assert_array_equal(value, wanted)
            else:
                np.testing.assert_allclose(value, wanted, rtol=1e-12, atol=1e-12)
        self.rows = found["rewritten"]
        self.reasons = [each["reason"] for each in found["declined"]]

    def of(self, operation: str) -> list[dict[str, Any]]:
        others = set(FIELDS.values()) - {FIELDS[operation], "mesh"}
        return [row for row in self.rows if FIELDS[operation] in row and not others & row.keys()]

    def one(self, operation: str) -> dict[str, Any]:
        (row,) = self.of(operation)
        return row


def array(*shape: int, chunks: Any = 4, seed: int = 0, dtype: Any = float) -> da.Array:
    """Return an array of small integers: products of these are exact."""
    values = np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)
    return da.from_array(values, chunks=chunks)


def twice(block: Any, *more: Any) -> Any:
    return block * 2


def mapped(x: da.Array, **options: Any) -> da.Array:
    return da.map_overlap(twice, x, dtype=float, **options)


A, B = array(11, 13, chunks=(4, 5)), array(13, 7, chunks=(5, 3), seed=1)
V, W = array(13, chunks=5), array(11, chunks=4)
S, T = array(4, 6, 8, chunks=(1, 3, 5)), array(4, 8, 5, chunks=(1, 5, 2), seed=1)
M, U = array(8, 5, chunks=(5, 2)), array(8, chunks=5)
C, D = array(12, 30, chunks=(12, 5)), array(6, 7, 8, chunks=(3, 7, 2), seed=1)
X, Y = array(24, chunks=6), array(12, 30, chunks=(4, 10))


def unknown(x: da.Array = A) -> da.Array:
    return x[x.sum(axis=tuple(range(1, x.ndim))) > 0]


class Subclass(np.ndarray):
    pass


@pytest.mark.parametrize(
    "multiply",
    [
        da.matmul,
        lambda a, b: a @ b,
        np.matmul,
        da.dot,
        np.dot,
        lambda a, b: a.dot(b),
        lambda a, b: da.tensordot(a, b, axes=1),
        lambda a, b: da.tensordot(a, b, axes=([-1], [0])),
    ],
)
@pytest.mark.parametrize("inner", [(5, 5, 3), *(SLOW(n) for n in ((13,), (1,) * 13, (0, 13, 0)))])
def test_every_product(multiply: Callable[..., da.Array], inner: Any) -> None:
    z = multiply(A.rechunk({1: inner}), B.rechunk({0: inner}))
    product = Found(z).one("matmul")
    assert (product["name"], product["dtype"]) == (z.name, z.dtype)
    assert (product["shape"], product["inner"]) == (z.shape, 13)


@pytest.mark.parametrize("split_every", [2, 3, 16])
def test_sums_of_any_depth(split_every: int) -> None:
    a, b = A.rechunk({1: 1}), B.rechunk({0: 1})
    with dask.config.set(split_every=split_every):
        for z in (a @ b, da.dot(a, b)):
            assert Found(z).one("matmul")["name"] == z.name


@pytest.mark.parametrize(
    ("z", "shape", "inner"),
    [
        (A @ V, (11, 1), 13),
        (W @ A, (1, 13), 11),
        (V @ V, (1, 1), 13),
        (A @ np.ones((13, 2)), (11, 2), 13),
        (da.matmul(np.ones((3, 11)), A), (3, 13), 11),
        (A.persist(scheduler="sync") @ B.persist(scheduler="sync"), (11, 7), 13),
    ],
)
def test_operands_of_products(z: da.Array, shape: Any, inner: int) -> None:
    product = Found(z).one("matmul")
    assert (product["shape"], product["inner"]) == (shape, inner)


@pytest.mark.parametrize(
    ("z", "count"),
    [
        ((A @ B).sum(), 1),
        (A @ B + 1, 1),
        ((A @ B)[:3, 1:], 1),
        ((A @ B).T, 1),
        (A @ A.T @ A, 2),
        (A @ A.T @ A @ B, 3),
        (A @ (A.T @ A) @ B + A @ B, 4),
        ((A.T @ A) @ (A.T @ A), 2),
        (da.linalg.norm(A @ B), 1),
        (da.cov(A), 1),
        (da.linalg.solve(A[:8, :8].rechunk(4), B[:8, :4].rechunk(4)), 1),
        (da.stack([A @ B, A @ B + 1]), 1),
        (da.concatenate([A @ B, A @ B.rechunk((13, 3))]), 2),
    ],
)
def test_products_within_larger_graphs(z: da.Array, count: int) -> None:
    assert len(Found(z).of("matmul")) == count


def test_products_of_several_results() -> None:
    z, gram = A @ B, A.T @ A
    found = Found(z, z.sum(), A @ B, gram, V).of("matmul")
    assert sorted(row["name"] for row in found) == sorted([z.name, gram.name])


PARTIAL = "other layers than the sum read the partial products"


@pytest.mark.parametrize(
    ("z", "prefix"), [(A @ B, "matmul"), (da.einsum("ab,bc->ac", A, B), "chunk_einsum")]
)
def test_partial_products_wanted_elsewhere(z: da.Array, prefix: str) -> None:
    name = next(name for name in z.dask.layers if name.startswith(prefix))
    chunks = z.dask.layers[name].collection_annotations["chunks"]
    read = da.Array(z.dask, name, chunks, dtype=float)
    for other in (read, read + 1):
        with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
            found = dgpu.explain(z, other)
        assert [each.reason for each in found.declined] == [PARTIAL]


CONTRACTIONS: dict[str, tuple[Callable[[], da.Array], str]] = {
    "stacks": (lambda: S @ T, "abc,acd->abd"),
    "one stack": (lambda: S @ M, "abc,1cd->abd"),
    "one stack, left": (lambda: M.T @ S.transpose(0, 2, 1), "1bc,dce->dbe"),
    "a stack of one": (lambda: S @ T[:1], "abc,1cd->abd"),
    "stacks of one": (lambda: S[:1] @ T[:1], "abc,1cd->abd"),
    "outer stacks": (lambda: S[:, None] @ T, "a1cd,1edf->aecf"),
    "a vector": (lambda: S @ U, "abc,1cd->abd"),
    "one block along the contraction": (
        lambda: S.rechunk({2: -1}) @ T.rechunk({1: -1}),
        "abc,acd->abd",
    ),
    "tensordot": (lambda: da.tensordot(S, M, axes=1), "abc,cd->abd"),
    "tensordot of two axes": (lambda: da.tensordot(S, T, axes=([0, 2], [0, 1])), "abc,acd->bd"),
    "tensordot of last axes": (lambda: da.tensordot(S, M, axes=([-1], [0])), "abc,cd->abd"),
    "tensordot of all axes": (lambda: da.tensordot(S, S, axes=3), "abc,abc->"),
    "transposed contraction": (lambda: da.tensordot(A, A, axes=((0,), (0,))), "ab,ac->bc"),
    "dot with a vector": (lambda: da.tensordot(M.T, U, axes=1), "ab,b->a"),
    "einsum": (lambda: da.einsum("ij,jk->ik", A, B), "ab,bc->ac"),
    "einsum, implied order": (lambda: da.einsum("kj,ji", B.T, A.T), "ab,bc->ca"),
    "einsum, transposed": (lambda: da.einsum("ij,jk->ki", A, B), "ab,bc->ca"),
    "einsum with a batch": (lambda: da.einsum("bqd,bdk->qbk", S, T), "abc,acd->bad"),
    "einsum with an ellipsis": (lambda: da.einsum("...qd,...dk", S, T), "abc,acd->adb"),
    "einsum of all": (lambda: da.einsum("abc,abc", S, S), "abc,abc->"),
    "einsum by numbers": (lambda: da.einsum(S, [0, 1, 2], M, [2, 3]), "abc,cd->abd"),
    "einsum with a path": (lambda: da.einsum("ij,jk", A, B, optimize=True), "ab,bc->ac"),
    "einsum in its own dtype": (lambda: da.einsum("ij,jk", A, B, dtype="f8"), "ab,bc->ac"),
}


def in_order(subscripts: str) -> str:
    """Return subscripts with letters in the order of the axes."""
    letters = dict.fromkeys(letter for letter in subscripts if letter.isalpha())
    names = dict(zip(letters, "abcdefghi", strict=False))
    return subscripts.translate(str.maketrans(names))


@pytest.mark.parametrize("case", CONTRACTIONS)
def test_every_contraction(case: str) -> None:
    make, subscripts = CONTRACTIONS[case]
    assert in_order(Found(make()).one("contract")["subscripts"]) == in_order(subscripts)


@pytest.fixture(params=["tasks", SLOW("p2p")])
def method(request: pytest.FixtureRequest) -> Iterator[str]:
    with dask.config.set({"array.rechunk.method": request.param}):
        yield request.param


ROWS = (3, 30)
RECHUNKS: dict[str, tuple[Callable[[], da.Array], da.Array, tuple[int, ...]]] = {
    "one call": (lambda: C.rechunk(ROWS), C, (0, 1)),
    "several calls": (lambda: C.rechunk(ROWS).rechunk((5, 7)).rechunk((12, 30)), C, (0, 1)),
    "empty chunks": (lambda: C.rechunk(((0, 5, 0, 7), 15)), C, (0, 1)),
    "reversed": (lambda: D.T.rechunk((3, 5, 4)), D, (2, 1, 0)),
    "transposed": (lambda: D.transpose((1, 2, 0)).rechunk((3, 5, 4)), D, (1, 2, 0)),
    "moved": (lambda: da.moveaxis(D, 0, -1).rechunk((3, 5, 4)), D, (1, 2, 0)),
    "swapped": (lambda: da.swapaxes(D, 0, -1).rechunk((3, 5, 4)), D, (2, 1, 0)),
    "transposed twice": (
        lambda: D.transpose((1, 2, 0)).transpose((1, 2, 0)).rechunk((3, 5, 4)),
        D,
        (2, 0, 1),
    ),
    "transposed between": (
        lambda: D.rechunk(3).transpose((1, 2, 0)).rechunk((2, 4, 4)),
        D,
        (1, 2, 0),
    ),
    "there and back": (lambda: D.T.rechunk(3).T.rechunk(4), D, (0, 1, 2)),
}


@pytest.mark.parametrize("case", RECHUNKS)
def test_every_rechunk(case: str, method: str) -> None:
    make, source, axes = RECHUNKS[case]
    z = make()
    with dask.config.set({"array.rechunk.method": "tasks"}):  # p2p needs a cluster
        expected = dask.compute(make(), scheduler="sync")
    rechunk = Found(z, expected=expected).one("rechunk")
    assert (rechunk["axes"], rechunk["name"]) == (axes, z.name)
    assert (rechunk["chunks_before"], rechunk["chunks"]) == (source.chunks, z.chunks)


@pytest.mark.parametrize(
    "blocks",
    [
        lambda x: da.blockwise(np.transpose, "ij", x, "ij", dtype=float),
        lambda x: x.map_blocks(np.transpose, chunks=x.chunks[::-1]),
        lambda x: da.flip(x, 0),
    ],
)
def test_block_functions_that_only_look_like_a_transpose(blocks: Any) -> None:
    assert Found(blocks(array(12, 12, chunks=3)).rechunk(4)).one("rechunk")["axes"] == (0, 1)


def test_rechunks_of_what_others_read() -> None:
    first = C.rechunk(ROWS)
    assert len(Found(first.rechunk((12, 7)), first).of("rechunk")) == 2
    x = array(12, 12, chunks=(12, 3))
    axes = {row["axes"] for row in Found(x + x.T).of("rechunk")}
    assert axes == {(0, 1), (1, 0)}


BOUNDARIES = ["reflect", "periodic", "nearest", 2.5, "none"]


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("depth", [1, SLOW(2), SLOW(3)])
def test_every_boundary(boundary: Any, depth: int) -> None:
    z = da.overlap.overlap(Y, depth, boundary)
    kind = None if boundary == "none" else boundary
    if (boundary, depth) == ("nearest", 1):
        kind = "reflect"  # they are the same
    overlap = Found(z).one("overlap")
    assert (overlap["name"], overlap["depth"]) == (z.name, ((depth, depth),) * 2)
    assert overlap["boundary"] == (kind,) * 2
    assert (overlap["chunks_before"], overlap["chunks"]) == (Y.chunks, z.chunks)


OVERLAPS: list[tuple[Any, Any, Any, Any]] = [
    ({0: 2, 1: 3}, {0: "reflect", 1: "none"}, ((2, 2), (3, 3)), ("reflect", None)),
    ({0: 2, 1: 3}, {0: 0, 1: "periodic"}, ((2, 2), (3, 3)), (0, "periodic")),
    ((2, 2), ("nearest", "reflect"), ((2, 2), (2, 2)), ("nearest", "reflect")),
    ({1: 2}, "periodic", ((0, 0), (2, 2)), (None, "periodic")),
    ((0, 2), {0: "reflect"}, ((0, 0), (2, 2)), (None, None)),
    ({0: (1, 2), 1: (0, 3)}, "none", ((1, 2), (0, 3)), (None, None)),
    ({0: (1, 2), 1: 3}, {0: "none", 1: "reflect"}, ((1, 2), (3, 3)), (None, "reflect")),
]


@pytest.mark.parametrize(("depth", "boundary", "depths", "kinds"), OVERLAPS)
def test_each_axis_has_its_own(depth: Any, boundary: Any, depths: Any, kinds: Any) -> None:
    z = Y.map_overlap(np.copy, depth=depth, boundary=boundary, trim=False, dtype=float)
    overlap = Found(z.map_blocks(np.sum, keepdims=True, chunks=(1, 1))).one("overlap")
    assert (overlap["depth"], overlap["boundary"]) == (depths, kinds)


def test_sliding_windows() -> None:
    windows = da.lib.stride_tricks.sliding_window_view(Y, (2, 3))
    assert Found(windows).one("overlap")["depth"] == ((0, 1), (0, 2))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", "float32", "complex64"])
def test_a_constant_is_of_the_dtype(dtype: str) -> None:
    x = array(6, chunks=3, dtype=dtype)
    (value,) = Found(da.overlap.overlap(x, 1, 0.1)).one("overlap")["boundary"]
    assert np.dtype(dtype).type(0.1) == value


def with_edges(left: da.Array, x: da.Array, right: da.Array, depth: int = 2) -> da.Array:
    """Overlap an array between two others, as Dask does with boundaries."""
    y = da.overlap.overlap_internal(da.concatenate([left, x, right]), {0: depth})
    return y[2 * depth : -2 * depth]


LOOKALIKES: dict[str, Callable[[], da.Array]] = {
    "other cells": lambda: with_edges(X[1:3], X, X[-2:]),
    "another array's cells": lambda: with_edges(array(24, chunks=6, seed=5)[:2], X, X[-2:]),
    "two kinds": lambda: with_edges(X[-2:], X, X[-1:-3:-1]),
    "two values": lambda: with_edges(da.full(2, 1.0, chunks=2), X, da.full(2, 2.0, chunks=2)),
    "values one by one": lambda: with_edges(*[da.ones(4, chunks=2)[:2], X, da.ones(2)]),
    "computed": lambda: with_edges(X[:2] + 1, X, X[-2:] + 1),
    "picked": lambda: with_edges(X[[1, 0]], X, X[[23, 22]]),
}


@pytest.mark.parametrize("case", LOOKALIKES)
def test_what_only_looks_like_a_boundary(case: str) -> None:
    assert Found(LOOKALIKES[case]()).one("overlap")["boundary"] == (None,)


def test_overlaps_that_are_trimmed_otherwise() -> None:
    y = da.overlap.overlap_internal(da.overlap.reflect(X, 0, 2), {0: 2})
    for z in (y[3:-4], y[4:], y[4:-4:2]):
        assert Found(z).one("overlap")["boundary"] == (None,)
    assert Found(y[4:-4][::-1]).one("overlap")["boundary"] == ("reflect",)


def test_overlaps_that_share_slices_or_sources() -> None:
    assert len(Found(*(mapped(Y, depth=n, boundary="nearest") for n in (2, 3))).of("overlap")) == 2
    z = Y
    for _ in range(5):
        z = mapped(z, depth=1, boundary="periodic") + Y
    assert len({row["name"] for row in Found(z).of("overlap")}) == 5
    thin = Found(mapped(array(12, 30, chunks=(4, 3)), depth=4, boundary="reflect"))
    assert len(thin.of("overlap")) == len(thin.of("rechunk")) == 1


NOTHING = [
    A + 1,
    A.sum(axis=0),
    A.T + 1,
    A[::2, 3:],
    da.outer(V, W),
    da.einsum("ab->ba", A),
    A.map_blocks(np.sort),
    da.linalg.qr(array(11, 13, chunks=(4, 13)))[1],
    da.concatenate([A, A]),
    da.stack([A, A]),
    da.from_array(np.ones(4), chunks=2, name="rechunk-merge-mine"),
    da.from_array(np.ones(4), chunks=2, name="overlap-mine"),
    da.overlap.boundaries(Y, {0: 2, 1: 2}, {0: "reflect", 1: 0}),
    mapped(Y, depth=0, boundary="reflect"),
    clone(mapped(Y, depth=1, boundary="none")),  # Dask forgets what the layers are
]


@pytest.mark.parametrize("z", NOTHING, ids=range(len(NOTHING)))
def test_what_is_none_of_them(z: da.Array) -> None:
    found = Found(z)
    assert (found.rows, found.reasons) == ([], [])


@pytest.mark.parametrize("rebuild", [clone, lambda z: bind(z, A.sum())])
def test_products_of_which_dask_forgets_the_layers(rebuild: Callable[..., da.Array]) -> None:
    assert Found(rebuild(A @ B)).rows == []


def of_cupy(x: da.Array) -> da.Array:
    """Pretend that the blocks are on a GPU."""
    x = x + 0
    x.dask.layers[x.name].collection_annotations["chunk_type"] = "cupy.ndarray"
    return x


def masked(x: da.Array) -> da.Array:
    return da.ma.masked_greater(x, 2)


UNKNOWN, OBJECT = "chunk sizes are unknown", "dtype object has no kernel"
MASKED = "blocks of type numpy.ma.MaskedArray are neither NumPy nor CuPy arrays"
DECLINED: dict[str, tuple[Callable[[], da.Array], str]] = {
    "product, unknown rows": (lambda: unknown() @ B, UNKNOWN),
    "product, unknown columns": (lambda: B.T @ unknown().T, UNKNOWN),
    "product, unknown contraction": (lambda: unknown().T @ unknown(), UNKNOWN),
    "product, masked contraction": (lambda: A[:, V > 0] @ B[V > 0], UNKNOWN),
    "product, transposed": (lambda: A[:, V > 0].T.T @ B[V > 0], UNKNOWN),
    "product, contradicting": (lambda: da.topk(A, 3, axis=1) @ B[:3].rechunk((3, 3)), UNKNOWN),
    "product, dot": (lambda: da.dot(unknown(), B), UNKNOWN),
    "product, object": (lambda: A.astype(object) @ B.astype(object), OBJECT),
    "product, long double": (lambda: A.astype("g") @ B, "dtype float128 has no kernel"),
    "product, big endian": (lambda: A.astype(">f8") @ B, "dtype >f8 has no kernel"),
    "product, masked": (lambda: masked(A) @ B, MASKED),
    "product, masked right": (lambda: A @ masked(B), MASKED),
    "product, subclass": (
        lambda: da.from_array(np.eye(4).view(Subclass), chunks=2, asarray=False) @ np.eye(4),
        "Subclass are neither",
    ),
    "product, an empty chunk that Dask broadcasts": (
        lambda: array(1, 7, chunks=3).rechunk(((0, 1), (7,))) @ array(1, 7, chunks=7).T,
        "the blocks of the result differ from those of the operands",
    ),
    "product, mixed containers": (
        lambda: of_cupy(A) @ B,
        "one operand has NumPy blocks and the other CuPy blocks",
    ),
    "einsum of a diagonal": (
        lambda: da.einsum("aab,bc->ac", S[:, :4], M),
        "appears twice in one operand",
    ),
    "einsum, elementwise": (
        lambda: da.einsum("ab,ab->ab", A, A),
        "no index of both operands is summed",
    ),
    "outer": (lambda: da.tensordot(A, B, axes=0), "no index of both operands is summed"),
    "einsum with a sum": (
        lambda: da.einsum("ab,bc->c", A, B),
        "an index of one operand alone is summed",
    ),
    "einsum of another dtype": (
        lambda: da.einsum("ab,bc", A, B, dtype="complex128"),
        "dtype complex128 is not that of the product",
    ),
    "stacks, unknown": (lambda: unknown(S) @ M, UNKNOWN),
    "einsum, unknown": (lambda: da.einsum("ab,ac->bc", unknown(), unknown()), UNKNOWN),
    "stacks, object": (lambda: S.astype(object) @ T, OBJECT),
    "tensordot, masked": (lambda: da.tensordot(S, masked(M), axes=1), MASKED),
    "einsum, repeated": (
        lambda: da.einsum("ab,bc", A, B[:1]),
        "an axis of length 1 is summed against one of length 13",
    ),
    "rechunk, unknown": (lambda: unknown(C).rechunk({1: 7}), UNKNOWN),
    "rechunk, contradicting": (lambda: da.topk(C, 4, axis=1).rechunk({1: 2}), UNKNOWN),
    "rechunk, object": (lambda: C.astype(object).rechunk(ROWS), OBJECT),
    "rechunk, structured": (
        lambda: C.astype([("re", "f4"), ("im", "f4")]).rechunk(ROWS),
        "has no kernel",
    ),
    "rechunk, masked": (lambda: masked(C).rechunk(ROWS), MASKED),
    "overlap, unknown": (lambda: da.overlap.overlap_internal(unknown(Y), {1: 1}), UNKNOWN),
    "overlap, object": (lambda: da.overlap.overlap(Y.astype(object), 1, "none"), OBJECT),
    "overlap, masked": (lambda: da.overlap.overlap(masked(Y), 1, "none"), MASKED),
    "overlap, negative": (
        lambda: da.overlap.overlap_internal(Y, {0: -1}),
        "the depth of the overlap is negative",
    ),
    "overlap, thin": (
        lambda: da.overlap.overlap_internal(array(9, chunks=(4, 1, 4)), {0: 2}),
        "a chunk is thinner than the depth of the overlap",
    ),
}


@pytest.mark.parametrize("case", DECLINED)
def test_declined_with_one_reason(case: str) -> None:
    make, reason = DECLINED[case]
    z = make()
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        found = dgpu.explain(z).to_dict()
    (declined,) = found["declined"]
    assert reason in declined["reason"]
    assert declined["name"] not in [row["name"] for row in found["rewritten"]]
