"""Overlaps on clusters that are not there: what is predicted, planned, sent and copied."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from dask_dgpu.algorithms.halo.rank import Exchange
from dask_dgpu.environment.facts import ClusterFacts
from dask_dgpu.environment.settings import read
from dask_dgpu.optimizer import GraphOptimizer
from graph_opt.pieces.overlap import OverlapPiece
from tests.array.overlap.test_local import ALWAYS, A, X, loop, same
from tests.support.calls import calls_of


@pytest.fixture
def enabled() -> Iterator[dgpu.Enabled]:
    with dgpu.enable(local_ranks=3, **ALWAYS) as state:
        yield state


def test_what_functions_keep_stays_as_it_is(enabled: dgpu.Enabled, monkeypatch: Any) -> None:
    """The room around trimmed blocks is used again, but not if somebody else holds it."""
    copied: list[bool] = []
    original = Exchange.copy_blocks
    monkeypatch.setattr(Exchange, "copy_blocks", lambda self: copied.append(True) or original(self))
    kept: list[Any] = []

    def averaged(block: Any) -> Any:
        return 0.5 * (block + np.roll(block, 1, 0))

    def keeping(block: Any) -> Any:
        kept.append(averaged(block))
        return kept[-1]

    def in_place(block: Any) -> Any:
        block += np.roll(block, 1, 1)
        return block

    def loop(*functions: Callable[[Any], Any]) -> da.Array:
        z = X
        for function in functions:
            z = da.map_overlap(function, z, depth=1, boundary="periodic", dtype=float, meta=A)
        return z

    for functions, copies in (
        ([averaged] * 4, 1),
        ([averaged, keeping, averaged, averaged], 2),
        ([averaged, in_place, in_place, averaged], 1),
    ):
        copied.clear()
        same(loop(*functions))
        assert len(copied) == 3 * copies  # by each rank
    before = [block.copy() for block in kept]
    loop(averaged, keeping, averaged).compute(scheduler="sync")
    for block, earlier in zip(kept, before, strict=False):
        np.testing.assert_array_equal(block, earlier)


def optimizer(workers: int = 4, device: Any = "cpu", **changes: Any) -> GraphOptimizer:
    memory = 80 << 30 if device == "cuda" else None
    return GraphOptimizer(
        read({"on_error": "raise"} | changes), ClusterFacts(workers, device, memory)
    )


def on_gpus(x: da.Array) -> da.Array:
    """Pretend that the blocks are on GPUs."""
    for layer in x.dask.layers.values():
        layer.collection_annotations["chunk_type"] = "cupy.ndarray"
    return x


def test_loops_pay() -> None:
    for boundary in ("none", "periodic"):
        z = loop(da.ones((2048, 2048), chunks=1024), 10, boundary)
        rewriting = optimizer().rewrite(z.dask, z.__dask_keys__())
        assert len(rewriting.regions) == 1
        large = loop(da.ones((32768, 32768), chunks=8192, dtype="f4"), 10, boundary)
        large = on_gpus(large)
        rewriting = optimizer(8, "cuda").rewrite(large.dask, large.__dask_keys__())
        ((_, prediction),) = rewriting.regions
        assert prediction.seconds < prediction.dask_seconds / 4


def test_a_step_of_a_small_array_does_not() -> None:
    z = loop(da.ones((8, 8), chunks=4), 1)
    (declined,) = optimizer().rewrite(z.dask, z.__dask_keys__()).declined
    assert "plain Dask is predicted to be quicker" in declined.reason


def test_blocks_of_the_other_kind() -> None:
    z = loop(X, 3)
    rewriting = optimizer(2, "cuda", when="always").rewrite(z.dask, z.__dask_keys__())
    assert not rewriting.regions
    assert {each.reason for each in rewriting.declined} == {
        "blocks are on the host and no computation follows"
    }


def test_bytes_are_those_of_the_surface() -> None:
    """Four blocks, one per rank: each receives an edge of two others and a corner of the third."""
    z = loop(da.ones((32, 32), chunks=16), 1)
    rewriting = optimizer(when="always").rewrite(z.dask, z.__dask_keys__())
    ((_, prediction),) = rewriting.regions
    details = dict(prediction.details)
    assert details["messages"] == 4 * 3
    assert prediction.moved_bytes == 8 * (16 + 16 + 1)
    assert details["total_bytes"] == 4 * prediction.moved_bytes


@pytest.mark.slow
@pytest.mark.parametrize("boundary", ["none", "periodic"])
def test_many_steps_cost_as_much_each_as_few(boundary: Any) -> None:
    """Optimizing and planning; payload and tasks."""
    facts = []
    for steps in (40, 160):
        z = loop(X, steps, boundary) + 1
        keys = z.__dask_keys__()
        calls = calls_of(lambda z=z, keys=keys: optimizer(when="always")(z.dask, keys))
        rewriting = optimizer(when="always").rewrite(z.dask, keys)
        ((region, prediction),) = rewriting.regions
        assert sum(isinstance(piece, OverlapPiece) for piece in region.pieces) == steps
        assert prediction.tasks == 2 * X.npartitions + 1
        assert len(region.label) < 500
        payload = optimizer(when="always").launch(region, rewriting.reader).program.text[0]
        facts.append((calls, len(payload)))
    (few, light), (many, heavy) = facts
    assert many < 4.4 * few
    assert heavy < 4.4 * light


def test_a_step_is_as_long_whatever_its_blocks() -> None:
    """What each block is made from is said once for all steps; of a step only names travel."""

    def payload(chunk: int, steps: int) -> int:
        z = loop(da.ones((32, 32), chunks=chunk), steps)
        rewriting = optimizer(when="always").rewrite(z.dask, z.__dask_keys__())
        ((region, _),) = rewriting.regions
        return len(optimizer(when="always").launch(region, rewriting.reader).program.text[0])

    few, many = ((payload(chunk, 30) - payload(chunk, 10)) / 20 for chunk in (16, 4))
    assert few < 1000
    assert many == pytest.approx(few, rel=0.05)


def test_a_function_travels_once() -> None:
    weights = np.random.default_rng(1).random(10_000)

    def weighted(block: Any) -> Any:
        return block * weights[0]

    z = X
    for _ in range(20):
        z = z.map_overlap(weighted, depth=1, boundary="none", dtype=float)
    o = optimizer(when="always")
    rewriting = o.rewrite(z.dask, z.__dask_keys__())
    ((region, _),) = rewriting.regions
    payload = pickle.dumps(o.launch(region, rewriting.reader).program)
    assert weights.nbytes < len(payload) < 2 * weights.nbytes
    again = pickle.loads(payload)
    local = [number for number, node in again.numbered.items() if node.operation is None]
    assert len(local) == 20
    assert all(again.blockworks.calls(each, [(0, 0)]).keys() == {(0, 0)} for each in local)
