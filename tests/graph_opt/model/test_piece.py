"""Which layers share a gang: levels, borders, what is wanted of it, halves."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.core import flatten

from graph_opt.dask_graph.emit import GangLayer
from graph_opt.dask_graph.internals import TaskRef
from graph_opt.dask_graph.parse import is_member, parse
from graph_opt.model.names import label
from graph_opt.model.piece import Blockwork, Region
from tests.graph_opt.graphs import array, emitted, regions

A, B = array(12, 12), array(12, 12, seed=1)


def kinds(region: Region) -> list[str]:
    return [member.output.name.rpartition("-")[0] for member in region.members]


def gangs(z: da.Array) -> list[Region]:
    """Return the regions with collectives."""
    return [region for region in regions(z, local=True) if region.pieces]


def value(x: da.Array, graph: Any) -> Any:
    return da.Array(graph, x.name, x.chunks, meta=x).compute(scheduler="sync", optimize_graph=False)


REDUCTIONS = (da.max, da.min, da.argmax, da.argmin, da.prod, da.nansum, da.nanmean, da.nanmax)
CASES = {
    "elementwise before and after": lambda: ((A + 1) @ B) * 2,
    "creation": lambda: da.ones((12, 12), chunks=4) @ da.arange(144, chunks=144).reshape(12, 12),
    "reduction": lambda: (A @ B).sum(axis=0) - (A @ B).mean(),
    "several values of a reduction": lambda: (A @ B).var() + (A @ B).argmax(axis=1),
    "other reductions": lambda: da.stack([reduce(A @ B, axis=0) for reduce in REDUCTIONS]),
    "slices": lambda: ((A @ B)[3:7, ::2] + 1)[::-1],
    "joined": lambda: da.concatenate([A @ B, A])[5:] + da.stack([B @ A, A]).sum(axis=0)[0],
    "broadcast": lambda: (A @ B) * da.arange(12, chunks=4, dtype=float)[:, None],
    "block numbers": lambda: (A @ B).map_blocks(
        lambda block, block_id=None: block * sum(block_id), dtype=float
    ),
    "chain": lambda: (A @ B @ A + 1) @ B,
    "transposes": lambda: ((A @ B).T + B).T @ A,
}


@pytest.mark.parametrize("case", CASES)
def test_one_region_computes_the_same(case: str) -> None:
    z = CASES[case]()
    assert len(gangs(z)) == 1
    graph = emitted(z, local=True)
    np.testing.assert_allclose(value(z, graph), z.compute(scheduler="sync"), rtol=1e-12)


def test_members_are_fused_among_themselves() -> None:
    (region,) = regions((((A + 1) * 2) @ B - 1) / 3, local=True)
    assert kinds(region) == ["mul", "_chunk_sum-aggregate", "truediv"]
    assert [isinstance(member, Blockwork) for member in region.members] == [True, False, True]
    assert region.tasks == A.npartitions + B.npartitions + 9 + 1


def test_blocks_are_staged_once_and_only_those_that_are_read() -> None:
    (region,) = regions((A @ A + A)[:4], local=True)
    ((node, blocks),) = region.inputs
    assert node.name == A.name
    assert len(blocks) == A.npartitions
    assert {index[0] for _, some in region.wanted for index in some} == {0}


def outside(x: da.Array) -> da.Array:
    """Return an array by way of masked blocks, which gangs do not have."""
    return da.ma.filled(da.ma.masked_less(x, -1000), 0)


def test_what_is_read_outside_is_wanted() -> None:
    y = A @ B
    z = outside(y) @ A
    first, second = regions(z, y, local=True)
    assert kinds(first)[0] == "_chunk_sum-aggregate"
    assert dict(first.wanted).keys() == {y.name}
    assert len(second.inputs) == 2
    np.testing.assert_array_equal(value(z, emitted(z, local=True)), z.compute())


def test_no_path_leads_out_and_back_in() -> None:
    y = A @ B
    z = (y + outside(y)) @ y
    found = regions(z, local=True)
    names = [set(region.nodes) for region in found]
    assert y.name in names[0]
    assert z.name in names[-1]
    assert z.name not in names[0]
    np.testing.assert_array_equal(value(z, emitted(z, local=True)), z.compute())


def test_what_reads_nothing_sinks_to_its_readers() -> None:
    k = da.ones((12, 12), chunks=4) * 3
    z = (outside(A @ B) * k) @ A
    first, second = regions(z, local=True)
    assert not any("ones" in kind for kind in kinds(first))
    assert len(dict(second.wanted)) == 1
    assert len(second.inputs) == 2  # the masked array and A, not k


def test_a_component_without_a_collective_is_a_region_too() -> None:
    z = (A + 1).sum()
    (region,) = regions(z, local=True)
    assert region.pieces == ()
    assert region.joins
    assert not region.in_place
    assert region.label == label(z.name)
    assert any(isinstance(layer, GangLayer) for layer in emitted(z, local=True).layers.values())
    np.testing.assert_array_equal(value(z, emitted(z, local=True)), z.compute())


@pytest.mark.parametrize(
    ("make", "joins", "in_place"),
    [
        (lambda: A + B, False, True),
        (lambda: (A + 1).map_blocks(np.sin), False, True),
        (lambda: A + A.T, True, False),
        (lambda: A + B.T, False, False),
        (lambda: A[4:] - B[:8], False, False),
        (lambda: da.concatenate([A, B]), False, False),
        (lambda: A.cumsum(axis=0), True, False),
        (lambda: A.max(axis=1), True, False),
        (lambda: A - A.max(axis=1)[:, None], True, False),
    ],
)
def test_which_blocks_meet(make: Any, joins: bool, in_place: bool) -> None:
    (region,) = regions(make(), local=True)
    assert (region.joins, region.in_place) == (joins, in_place)


def test_a_stream_of_blocks_in_memory_is_no_stream() -> None:
    x = da.random.default_rng(1).random((64, 12), chunks=(4, 12)).persist(scheduler="sync")
    z = (x + 1).mean(axis=0)[None] @ B
    assert any("mean_chunk" in kinds(region) for region in regions(z, local=True))
    np.testing.assert_allclose(value(z, emitted(z, local=True)), z.compute())


def test_a_stream_that_is_reduced_before_a_collective_is_left_to_dask() -> None:
    x = da.random.default_rng(1).random((64, 12), chunks=(4, 12))
    z = (x + 1).mean(axis=0)[None] @ B
    (region,) = gangs(z)
    assert not any("random" in kind or "mean_chunk" in kind for kind in kinds(region))
    np.testing.assert_allclose(value(z, emitted(z, local=True)), z.compute())


def test_what_is_reduced_and_needed_otherwise_too_is_not() -> None:
    x = da.random.default_rng(1).random((64, 12), chunks=(4, 12))
    y = x - x.mean(axis=0)
    (region,) = regions(y.T @ y, local=True)
    assert region.inputs == ()
    assert {"random", "mean_chunk", "sub"} <= set(kinds(region))


def test_pieces_alone_are_regions_too() -> None:
    first, second = sorted(regions((A @ B + 1) @ A), key=lambda region: len(region.wanted))
    assert [len(region.members) for region in (first, second)] == [1, 1]


def test_annotations_must_be_alike() -> None:
    with dask.annotate(priority=2):
        y = A @ B
    found = regions(y @ A, local=True)
    assert sorted(str(region.annotations) for region in found) == ["None", "{'priority': 2}"]


def test_halves() -> None:
    z = ((A @ B) @ A + A @ B) @ B
    (region,) = regions(z, local=True)
    first, second = region.split()
    assert first.members + second.members == region.members
    assert dict(second.wanted).keys() == {z.name}
    read = {node.name: set(blocks) for node, blocks in second.inputs if node.name in first.nodes}
    assert {name: set(blocks) for name, blocks in first.wanted} == read


def test_tokens_tell_regions_apart() -> None:
    z = (A @ B) * 2
    (one,) = regions(z, local=True)
    (same,) = regions((A @ B) * 2, local=True)
    (other,) = regions((A @ B) * 3, local=True)
    (part,) = regions(z[:4], local=True)
    assert one.token == same.token
    assert len({one.token, other.token, part.token}) == 3


def opened() -> da.Array:
    class Source:
        shape, dtype, ndim = (8, 8), np.dtype(float), 2

        def __getitem__(self, index: Any) -> Any:
            return np.ones((8, 8))[index]

    return da.from_array(Source(), chunks=4)


OUTSIDE = {
    "an array in memory": lambda: A,
    "a file": opened,
    "unknown chunks": lambda: A[A[:, 0] > 0] + 1,
    "objects": lambda: A.astype(object) + 1,
    "masks": lambda: da.ma.masked_greater(A, 1),
    "functions that make blocks": lambda: da.map_blocks(
        lambda: np.ones((4, 4)), chunks=((4,), (4,)), dtype=float
    ),
    "a future": lambda: da.from_delayed(TaskRef("future-key"), (4, 4), float),
    "tuples": lambda: da.argtopk(A, 2),
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_what_stays_with_dask(case: str) -> None:
    x = OUTSIDE[case]()
    assert not is_member(parse(x.dask, list(flatten(x.__dask_keys__()))), x.name)
