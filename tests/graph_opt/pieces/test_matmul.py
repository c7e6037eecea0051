"""What Dask builds for a product is recognised, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.graph_manipulation import bind, clone
from dask.highlevelgraph import HighLevelGraph

from graph_opt.dask_graph.layers import insert
from graph_opt.pieces.matmul import MatmulPiece
from tests.graph_opt.graphs import array, matches, one, products, reason

A, B = array(11, 13, chunks=(4, 5)), array(13, 7, chunks=(5, 3), seed=1)
V, W = array(13, chunks=5), array(11, chunks=4)


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
@pytest.mark.parametrize("inner", [((5, 5, 3),), ((13,),), ((1,) * 13,), ((0, 13, 0),)])
def test_every_spelling(multiply: Callable[..., da.Array], inner: tuple[Any]) -> None:
    a, b = A.rechunk({1: inner[0]}), B.rechunk({0: inner[0]})
    z = multiply(a, b)
    product = one(z)
    assert product.output.name == z.name
    assert (product.left.name, product.right.name) == (a.name, b.name)
    assert product.output.chunks == z.chunks
    assert product.output.dtype == z.dtype
    assert set(product.inner) == set(z.dask.layers) - set(a.dask.layers) - set(b.dask.layers)


@pytest.mark.parametrize("split_every", [2, 3, 16])
def test_sums_of_any_depth(split_every: int) -> None:
    a, b = A.rechunk({1: 1}), B.rechunk({0: 1})
    with dask.config.set(split_every=split_every):
        for z in (a @ b, da.dot(a, b)):
            assert one(z).output.name == z.name


@pytest.mark.parametrize(
    ("z", "left", "right"),
    [(A @ V, (11, 13), (13, 1)), (W @ A, (1, 11), (11, 13)), (V @ V, (1, 13), (13, 1))],
)
def test_operands_of_one_axis(z: da.Array, left: Any, right: Any) -> None:
    product = one(z)
    assert (product.left.shape, product.right.shape) == (left, right)


def test_one_operand_is_a_numpy_array() -> None:
    assert one(A @ np.ones((13, 2))).right.shape == (13, 2)
    assert one(da.matmul(np.ones((3, 11)), A)).left.shape == (3, 11)


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
        (da.corrcoef(A), 1),
        (da.linalg.svd_compressed(A.rechunk((4, 13)), 3, seed=1)[1], 2),
        (da.linalg.solve(A[:8, :8].rechunk(4), B[:8, :4].rechunk(4)), 1),
        (da.stack([A @ B, A @ B + 1]), 1),
        (da.concatenate([A @ B, A @ B.rechunk((13, 3))]), 2),
    ],
)
def test_within_larger_graphs(z: da.Array, count: int) -> None:
    assert len(products(z)) == count


def test_the_same_operand_twice() -> None:
    square = A[:, :11].rechunk(4)
    product = one(square @ square)
    assert product.left == product.right
    gram = one(A.T @ A)
    assert (gram.left.name, gram.right.name) == (A.T.name, A.name)


def test_several_results_together() -> None:
    z = A @ B
    found = products(z, z.sum(), A @ B, A.T @ A, V)
    assert sorted(p.output.name for p in found) == sorted([z.name, (A.T @ A).name])


def test_persisted_operands() -> None:
    a, b = dask.persist(A, B, scheduler="sync")
    assert (one(a @ b).left.name, one(a @ b).right.name) == (a.name, b.name)


def test_rebuilt_graphs() -> None:
    z = A @ B
    for x in (clone(z), bind(z, A.sum())):  # Dask forgets what the inner layers are
        assert not matches(x).pieces
        np.testing.assert_array_equal(x.compute(), z.compute())


def test_chunk_sizes_that_dask_learns_late() -> None:
    known = unknown().compute_chunk_sizes()
    assert one(known @ B).left.chunks == (known.chunks[0], B.chunks[0])
    assert one(B.T @ known.T).right.chunks == (B.chunks[0], known.chunks[0])
    rows = (A[:, 0] > 0).compute()
    assert one(known.T @ A[rows].rechunk({0: known.chunks[0]})).output.shape == (13, 13)


def test_chunk_sizes_that_contradict() -> None:
    largest = da.topk(A, 3, axis=1)
    assert reason(largest @ B[:3].rechunk((3, 3))) == "chunk sizes are unknown"
    assert reason(largest @ da.topk(B, 3, axis=0)) == "chunk sizes are unknown"
    assert one(A.sum(axis=1, keepdims=True) @ B[:1]).left.shape == (11, 1)


def test_annotated_layers() -> None:
    with dask.annotate(priority=3):
        z = A @ B
    assert one(z).output.name == z.name


def unknown() -> da.Array:
    return A[A[:, 0] > 0]


def mixed(x: da.Array) -> da.Array:
    """Pretend that the blocks are on a GPU."""
    x = x + 0
    x.dask.layers[x.name].collection_annotations["chunk_type"] = "cupy.ndarray"
    return x


class Subclass(np.ndarray):
    pass


STRUCTURED = [("re", "f4"), ("im", "f4")]

DECLINED: dict[str, tuple[Callable[[], da.Array], str]] = {
    "unknown rows": (lambda: unknown() @ B, "chunk sizes are unknown"),
    "unknown columns": (lambda: B.T @ unknown().T, "chunk sizes are unknown"),
    "unknown contraction": (lambda: unknown().T @ unknown(), "chunk sizes are unknown"),
    "masked contraction": (lambda: A[:, V > 0] @ B[V > 0], "chunk sizes are unknown"),
    "masked contraction, right": (lambda: A[:, V > 0].T.T @ B[V > 0], "chunk sizes are unknown"),
    "unknown, dot": (lambda: da.dot(unknown(), B), "chunk sizes are unknown"),
    "object": (lambda: A.astype(object) @ B.astype(object), "dtype object has no kernel"),
    "long double": (lambda: A.astype("g") @ B, "dtype float128 has no kernel"),
    "big endian": (lambda: A.astype(">f8") @ B, "dtype >f8 has no kernel"),
    "timedelta": (lambda: da.dot(A.astype("m8[s]"), B.astype(int)), "has no kernel"),
    "masked": (
        lambda: da.ma.masked_greater(A, 2) @ B,
        "blocks of type numpy.ma.MaskedArray are neither NumPy nor CuPy arrays",
    ),
    "masked right": (lambda: A @ da.ma.masked_greater(B, 2), "blocks of type numpy.ma"),
    "subclass": (
        lambda: da.from_array(np.eye(4).view(Subclass), chunks=2, asarray=False) @ np.eye(4),
        "Subclass are neither",
    ),
    "an empty chunk that Dask broadcasts": (
        lambda: array(1, 7, chunks=3).rechunk(((0, 1), (7,))) @ array(1, 7, chunks=7).T,
        "the blocks of the result differ from those of the operands",
    ),
    "mixed containers": (
        lambda: mixed(A) @ B,
        "one operand has NumPy blocks and the other CuPy blocks",
    ),
}


@pytest.mark.parametrize("case", DECLINED)
def test_declined(case: str) -> None:
    make, expected = DECLINED[case]
    try:
        z = make()
    except TypeError:  # Dask has no such product in this version
        assert case == "timedelta"
        return
    assert expected in reason(z)


def test_partial_products_wanted_elsewhere() -> None:
    z = A @ B
    name = next(name for name in z.dask.layers if name.startswith("matmul"))
    partial = da.Array(z.dask, name, ((4, 4, 3), (1, 1, 1), (3, 3, 1)), dtype=float)
    expected = "other layers than the sum read the partial products"
    assert reason(z, partial) == expected
    assert reason(z, partial + 1) == expected
    assert reason(partial) == expected


@pytest.mark.parametrize(
    "z",
    [
        A + 1,
        A.sum(axis=0),
        da.einsum("ij,jk->ik", A, B),
        da.outer(V, W),
        A.map_blocks(np.linalg.norm, chunks=(1, 1)),
        da.linalg.qr(A.rechunk((4, 13)))[1],
        da.fft.fft(A.rechunk((4, 13))),
    ],
)
def test_no_product(z: da.Array) -> None:
    assert (products(z), matches(z).declined) == ((), ())


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other

    def __call__(self, block: Any) -> Any:
        return block + 1


def test_block_functions_that_have_no_hash() -> None:
    x = A.map_blocks(Unhashable(), dtype=float)
    assert len(matches(x @ B).pieces) == 1


@pytest.mark.parametrize("case", ["unknown rows", "masked", "object"])
def test_declined_pieces_stay_as_dask_made_them(case: str) -> None:
    z = DECLINED[case][0]()
    after = insert(z.dask, matches(z).pieces)
    assert after.dependencies == z.dask.dependencies
    assert all(after.layers[name] is layer for name, layer in z.dask.layers.items())
    both = HighLevelGraph.merge(z.dask, (A @ B).dask)
    found = matches(z, A @ B)
    after = insert(both, found.pieces)
    assert all(after.layers[name] is layer for name, layer in z.dask.layers.items())
    assert [product.output.name for product in found.pieces] == [(A @ B).name]
    assert isinstance(found.pieces[0], MatmulPiece)
