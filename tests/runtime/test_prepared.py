"""What a rank does in each step is resolved once, however often it runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from dask_dgpu.runtime.plans import Plans, plans
from dask_dgpu.runtime.prepared import Functions, Operating, prepared
from dask_dgpu.runtime.program import Blockworks, Launch
from tests.support.programs import Staged, even, joined, loaded, run, run_evenly, steps_of

A = np.random.default_rng(37).random((13, 13))


def loop(x: da.Array, steps: int) -> da.Array:
    """Return a product, a sum and elementwise work again and again."""
    for _ in range(steps):
        x = x @ x.T / x.sum() + 1
    return x


def planned(z: da.Array, size: int) -> tuple[Launch, Plans, Staged]:
    """Return an array's program, planned for even shares, with the blocks of its inputs."""
    launch, staged = loaded(z, size)
    return launch, plans(launch.program, even(launch.program, size), size), staged


@pytest.mark.parametrize(("size", "chunk"), [(1, 13), (2, 5), (5, 7)])
def test_functions_are_looked_up_once(
    monkeypatch: pytest.MonkeyPatch, size: int, chunk: int
) -> None:
    looked_up: Counter[int] = Counter()
    calls = Blockworks.calls

    def counted(self: Blockworks, number: int, blocks: Any) -> Any:
        looked_up[number] += 1
        return calls(self, number, blocks)

    monkeypatch.setattr(Blockworks, "calls", counted)
    z = loop(da.from_array(A, chunks=chunk), 3)
    launch, fixed, staged = planned(z, size)
    blocks = run(launch, fixed, even(launch.program, size), staged, size).blocks
    found = joined(blocks, z.__dask_keys__())
    np.testing.assert_allclose(found, z.compute(scheduler="sync"), rtol=1e-12)
    local = [each for each, node in launch.program.numbered.items() if node.operation is None]
    assert {*looked_up} == {*local}
    # once for its calls, and for what is shipped of it
    assert all(size <= looked_up[each] <= 2 * size for each in local)


def test_each_rank_has_its_own_blocks() -> None:
    launch, fixed, _ = planned(loop(da.from_array(A, chunks=5), 1), 3)
    ranks = [prepared(launch.program, fixed, rank) for rank in range(3)]
    for at, (number, node) in enumerate(launch.program.numbered.items()):
        works = [steps_of(each)[at].work for each in ranks]
        if isinstance(works[0], Functions):
            made = [index for work in works for index in work.calls]
            assert set(made) == {i for i, by in fixed.makings[number].ranks.items() if by}
        else:
            assert all(isinstance(work, Operating) for work in works)
            for read, each in enumerate(node.reads):
                owned = [index for work in works for index in work.inputs[read].owned]
                existing = {index for index, _ in fixed.values[each].owners()}
                assert len(owned) == len(existing)
                assert set(owned) == existing
    results = {block for each in ranks for block, _ in each.results}
    wanted = {(number, index) for number, ids in launch.program.outputs for index in ids}
    assert results == wanted


REDUCED: dict[str, Any] = {
    "mean": lambda xp, x: x - xp.mean(x, axis=0),
    "mean of all": lambda xp, x: x / xp.mean(x),
    "deviation": lambda xp, x: x / xp.std(x, axis=1, ddof=1)[:, None],
    "float32": lambda xp, x: x / xp.var(x.astype("float32"), axis=0, dtype="float32"),
    "without NaN": lambda xp, x: x - xp.nanmean(xp.where(x > 0.9, np.nan, x), axis=0),
    "deviation without NaN": lambda xp, x: x - xp.nanstd(xp.where(x > 0.9, np.nan, x)),
    "integers": lambda xp, x: x + xp.mean((x * 9).astype("int32"), axis=1, keepdims=True),
    "minimum": lambda xp, x: x - xp.min(x, axis=0),
    "place": lambda xp, x: x - xp.argmax(x, axis=0) / 9,
    "place in all": lambda xp, x: x + xp.argmin(x) / 999,
    "place in an expression": lambda xp, x: x + xp.argmin(xp.abs(x - 0.5), axis=1)[:, None],
    "place in a broadcast": lambda xp, x: x + xp.argmax(abs(xp.mean(x, 0) - x), axis=0) / 9,
    "place without NaN": lambda xp, x: x - xp.nanargmax(xp.where(x > 0.9, np.nan, x), axis=0),
    "place of an integer": lambda xp, x: x + xp.argmax((x * 9).astype("int16"), axis=1)[None],
    "place of a boolean": lambda xp, x: x + xp.argmax(x > 0.3, axis=1)[None],
    "place of a complex number": lambda xp, x: x + xp.argmax(x * 1j, axis=0)[None],
    "compensated": lambda xp, x: x / dgpu.sum(x, 0) + dgpu.mean(x * x),
    "compensated, single": lambda xp, x: x.astype("float32") - dgpu.mean(x.astype("float32"), 1),
    "compensated in double": lambda xp, x: x / dgpu.sum(x.astype("float32"), 0, dtype="float64"),
    "compensated integers": lambda xp, x: x + dgpu.mean((x * 9).astype("int32"), keepdims=True),
}


@pytest.mark.parametrize(("chunks", "split_every"), [((4, 4), 4), ((2, 7), 2)])
@pytest.mark.parametrize("name", REDUCED)
def test_parts_of_reductions_have_no_header(
    name: str, chunks: tuple[int, int], split_every: int
) -> None:
    """So the host waits for no step, and a GPU can record all of them."""
    build = REDUCED[name]
    with dask.config.set(split_every=split_every):
        x = da.from_array(A, chunks=chunks)
        z = build(da, build(da, x))
    launch, fixed, staged = planned(z, 3)
    program = launch.program
    steps = [step for rank in range(3) for step in steps_of(prepared(program, fixed, rank))]
    shipping = [
        each for step in steps if isinstance(step.work, Functions) for each in step.work.shipping
    ]
    assert shipping
    assert split_every == 2 or all(step.is_recordable for step in steps)
    for others in (each for each in shipping if not each.known):
        for (value, index), _ in (*others.out, *others.expected):
            # nobody knows what inputs are; scalars and combined moments are not declared
            unknown = launch.names[value].startswith(("moment_combine-", "var-"))
            assert unknown or not index or value < len(program.inputs)
    blocks = run_evenly(launch, staged, 3).blocks
    whole = da.from_array(A, chunks=A.shape)
    wanted = build(da, build(da, whole)).compute(scheduler="sync")
    np.testing.assert_allclose(joined(blocks, z.__dask_keys__()), wanted, rtol=1e-6)


def test_other_parts_have_headers() -> None:
    """Complex moments and compensated sums, and exact sums."""
    x = da.from_array(A, chunks=4)
    exact = dgpu.sum(x, method="reproducible")
    for z in (x / (x * 1j).std(), x / dgpu.sum(x * 1j), x + exact):
        launch, fixed, _ = planned(z, 3)
        steps = steps_of(prepared(launch.program, fixed, 0))
        assert not all(step.is_recordable for step in steps)
