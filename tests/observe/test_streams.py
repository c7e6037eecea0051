"""Reductions that Dask computes: only the blocks at work have to fit."""

from __future__ import annotations

from collections.abc import Callable

import dask
import dask.array as da
import pytest

import dask_dgpu as dgpu
from dask_dgpu.environment.facts import ClusterFacts
from dask_dgpu.environment.settings import read
from dask_dgpu.optimizer import GraphOptimizer
from tests.observe.test_memory import ALWAYS, advised_settings, memory_of, on_gpus

REDUCTIONS: dict[str, Callable[[da.Array], da.Array]] = {
    "sum": lambda x: x.sum(),
    "rows": lambda x: x.sum(axis=0),
    "std": lambda x: x.std(),
    "argmax": lambda x: x.argmax(axis=1),
    "of work": lambda x: da.exp(x - 1).max(),
    "of a collective": lambda x: (x[:, :64] @ x[:64]).sum(),
}


@pytest.mark.parametrize("operation", REDUCTIONS)
def test_reductions_by_dask_need_the_blocks_at_work(operation: str) -> None:
    x = da.ones((512, 512), chunks=64).persist(scheduler="sync")
    block, z = 64 * 64 * 8, REDUCTIONS[operation](x)
    found = memory_of(z, memory_limit=block, local_ranks=1)
    assert not found.feasible
    assert any(block < each.peak_bytes < 3 * block for each in found.left)
    assert found.advice
    assert memory_of(z, local_ranks=1, **advised_settings(found)).feasible
    assert found.peak_bytes < x.nbytes / 20  # all other blocks do not count


@pytest.mark.parametrize(
    "z",
    [
        da.random.random((1000, 1000), chunks=1000).sum(),  # one block
        da.random.random((8, 10**6), chunks=(1, -1)).sum(axis=0),  # a result as large as each block
    ],
)
def test_reductions_of_large_blocks_do_not_fit(z: da.Array) -> None:
    found = memory_of(z, memory_limit="4 MiB")
    assert not found.feasible
    (left,) = found.left
    assert left.operations.startswith("sum")
    assert "sum" in str(found).partition("needs at least")[0]
    with dgpu.enable(**ALWAYS, memory_limit="4 MiB", memory_safety_margin=0):
        operations = dgpu.explain(z).operations
    assert [each.why for each in operations][-1].startswith("the blocks at work need")
    assert memory_of(z, memory_limit="64 MiB").feasible


@pytest.mark.parametrize(("threads", "fits"), [(1, True), (4, True), (5, False)])
def test_each_thread_has_a_block_at_work(threads: int, fits: bool) -> None:
    z = da.random.random((64, 640), chunks=(64, 64)).sum()
    limits = {"memory_limit": int(4.5 * 64 * 64 * 8), "memory_safety_margin": 0}
    settings = read({"regions": False, "on_error": "raise", **limits})
    facts = ClusterFacts(1, "cpu", None, threads=threads)
    with dask.config.set(array_optimize=GraphOptimizer(settings, facts)):
        assert dgpu.explain(z).memory.feasible is fits


def test_blocks_beside_the_memory_of_gpus_are_not_examined() -> None:
    z = da.random.random((64, 64), chunks=64).sum()
    assert on_gpus(z, memory=1000).feasible
    assert not on_gpus(z, memory=1000, of_cupy=".").feasible


def test_constant_blocks_need_no_memory() -> None:
    assert memory_of(da.ones((1000, 1000), chunks=1000).sum(), memory_limit="1 MiB").feasible
