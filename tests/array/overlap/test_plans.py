"""Overlaps on clusters that are not there: what is predicted, planned, sent and copied."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from tests.array.overlap.test_local import ALWAYS, A, X, loop, same
from tests.support.calls import calls_of
from tests.support.clusters import described, explained, on_gpus
from tests.support.programs import launch_of


@pytest.fixture
def enabled() -> Iterator[dgpu.Enabled]:
    with dgpu.enable(local_ranks=3, **ALWAYS) as state:
        yield state


@pytest.mark.usefixtures("enabled")
def test_what_functions_keep_stays_as_it_is(copied: list[bool]) -> None:
    """The room around trimmed blocks is used again, but not if somebody else holds it."""
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


def test_loops_pay() -> None:
    for boundary in ("none", "periodic"):
        z = loop(da.ones((2048, 2048), chunks=1024), 10, boundary)
        assert len(explained(z).regions) == 1
        large = on_gpus(loop(da.ones((32768, 32768), chunks=8192, dtype="f4"), 10, boundary))
        found = explained(large, workers=8, device="cuda", device_memory=80 << 30)
        ((_, prediction),) = found.regions
        assert prediction.seconds < prediction.dask_seconds / 4


def test_a_step_of_a_small_array_does_not() -> None:
    (declined,) = explained(loop(da.ones((8, 8), chunks=4), 1)).declined
    assert "plain Dask is predicted to be quicker" in declined.reason


def test_blocks_of_the_other_kind() -> None:
    gpus = {"workers": 2, "device": "cuda", "device_memory": 80 << 30}
    found = explained(loop(X, 3), when="always", **gpus)
    assert not found.regions
    assert {each.reason for each in found.declined} == {
        "blocks are on the host and no computation follows"
    }


def test_bytes_are_those_of_the_surface() -> None:
    """Four blocks, one per rank: each receives an edge of two others and a corner of the third."""
    z = loop(da.ones((32, 32), chunks=16), 1)
    ((_, prediction),) = explained(z, when="always").regions
    details = dict(prediction.details)
    assert details["messages"] == 4 * 3
    assert prediction.moved_bytes == 8 * (16 + 16 + 1)
    assert details["total_bytes"] == 4 * prediction.moved_bytes


def payload(z: da.Array) -> int:
    """Return the bytes of a program."""
    return len(launch_of(z, 4).program.text[0])


@pytest.mark.slow
@pytest.mark.parametrize("boundary", ["none", "periodic"])
def test_many_steps_cost_as_much_each_as_few(boundary: Any) -> None:
    """Optimizing and planning; payload and tasks."""
    facts = []
    for steps in (40, 160):
        z = loop(X, steps, boundary) + 1
        with described(when="always"):
            calls = calls_of(lambda z=z: dask.optimize(z))
        ((region, prediction),) = explained(z, when="always").regions
        assert [piece.operation for piece in region.pieces] == ["overlap"] * steps
        assert prediction.tasks == 2 * X.npartitions + 1
        assert len(region.label) < 500
        facts.append((calls, payload(z)))
    (few, light), (many, heavy) = facts
    assert many < 4.4 * few
    assert heavy < 4.4 * light


def test_a_step_is_as_long_whatever_its_blocks() -> None:
    """What each block is made from is said once for all steps; of a step only names travel."""

    def loops(chunk: int, steps: int) -> da.Array:
        return loop(da.ones((32, 32), chunks=chunk), steps)

    few, many = ((payload(loops(chunk, 30)) - payload(loops(chunk, 10))) / 20 for chunk in (16, 4))
    assert few < 1000
    assert many == pytest.approx(few, rel=0.05)


def test_a_function_travels_once() -> None:
    weights = np.random.default_rng(1).random(10_000)

    def weighted(block: Any) -> Any:
        return block * weights[0]

    z = X
    for _ in range(20):
        z = z.map_overlap(weighted, depth=1, boundary="none", dtype=float)
    text = pickle.dumps(launch_of(z, 4).program)
    assert weights.nbytes < len(text) < 2 * weights.nbytes
    again = pickle.loads(text)
    local = [number for number, node in again.numbered.items() if node.operation is None]
    assert len(local) == 20
    assert all(again.blockworks.calls(each, [(0, 0)]).keys() == {(0, 0)} for each in local)
