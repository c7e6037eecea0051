"""What a rank does in each step is resolved once, however often it runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.core import flatten
from dask.local import get_sync

import dask_dgpu as dgpu
from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device.host import HostDevice
from dask_dgpu.runtime.blockworks import Blockworks
from dask_dgpu.runtime.execute import execute
from dask_dgpu.runtime.plans import Plans, plans
from dask_dgpu.runtime.prepared import prepared
from dask_dgpu.runtime.program import Program
from dask_dgpu.runtime.steps import Functions, Operating
from graph_opt.dask_graph.emit import is_gang
from graph_opt.model.layout import NUMPY, dealt

A = np.random.default_rng(37).random((13, 13))


def loop(x: da.Array, steps: int) -> da.Array:
    """Return a product, a sum and elementwise work again and again."""
    for _ in range(steps):
        x = x @ x.T / x.sum() + 1
    return x


def program_of(z: da.Array) -> tuple[Program, list[list[Any]]]:
    """Return the program of an array, and the blocks of its inputs."""
    tasks = dask.config.get("array_optimize")(z.__dask_graph__(), list(flatten(z.__dask_keys__())))
    (gang,) = [key for key in tasks if is_gang(key)]
    program, *lists = tasks[gang].args
    return program, [list(get_sync(tasks, [ref.key for ref in each.args])) for each in lists]


def planned(z: da.Array, size: int) -> tuple[Plans, dict[str, tuple[int, ...]], list[list[Any]]]:
    """Return the plans of an array, with the owners of its inputs' blocks, and these blocks."""
    program, staged = program_of(z)
    pairs = zip(program.inputs, staged, strict=True)
    owners = {name: dealt(len(given), size) for (name, _), given in pairs}
    return plans(program, owners, size), owners, staged


def run(fixed: Plans, owners: Any, staged: list[list[Any]], size: int) -> dict[Any, Any]:
    """Run a program; return all blocks of its results."""

    def rank(comm: Comm) -> dict[Any, Any]:
        values = {
            name: {
                index: block
                for index, block, owner in zip(value.indices(), given, owners[name], strict=True)
                if owner == comm.rank
            }
            for (name, value), given in zip(fixed.program.inputs, staged, strict=True)
        }
        return execute(fixed.program, fixed, comm, HostDevice(), values)

    return {key: block for part in run_local(size, rank) for key, block in part.items()}


@pytest.mark.parametrize(("size", "chunk"), [(1, 13), (2, 5), (5, 7)])
def test_functions_are_looked_up_once(
    monkeypatch: pytest.MonkeyPatch, size: int, chunk: int
) -> None:
    looked_up: Counter[str] = Counter()
    calls = Blockworks.calls

    def counted(self: Blockworks, name: str, blocks: Any) -> Any:
        looked_up[name] += 1
        return calls(self, name, blocks)

    monkeypatch.setattr(Blockworks, "calls", counted)
    with dgpu.enable(local_ranks=size, when="always", on_error="raise"):
        fixed, owners, staged = planned(loop(da.from_array(A, chunks=chunk), 3), size)
    expected = loop(da.from_array(A, chunks=chunk), 3).compute(scheduler="sync")
    numbers = []
    for _ in range(3):
        blocks = run(fixed, owners, staged, size)
        numbers.append(looked_up.total())
        (name,) = {key[0] for key in blocks}
        grid = max(key[1] for key in blocks) + 1, max(key[2] for key in blocks) + 1
        rows = [[blocks[name, i, j] for j in range(grid[1])] for i in range(grid[0])]
        np.testing.assert_allclose(np.block(rows), expected, rtol=1e-12)
    assert {*numbers} == {looked_up.total()}
    assert min(looked_up.values()) == size


def test_each_rank_has_its_own_blocks() -> None:
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        fixed, _, _ = planned(loop(da.from_array(A, chunks=5), 1), 3)
    ranks = [prepared(fixed, rank) for rank in range(3)]
    assert [prepared(fixed, rank) for rank in range(3)] == ranks
    for at, step in enumerate(fixed.program.steps):
        works = [each.steps[at].work for each in ranks]
        if isinstance(works[0], Functions):
            made = [making.place for work in works for making in work.makings]
            assert set(made) == {i for i, by in fixed.makings[step.output].ranks.items() if by}
        else:
            assert all(isinstance(work, Operating) for work in works)
            for read, (name, *_) in enumerate(zip(step.inputs, strict=True)):
                owned = [index for work in works for index in work.inputs[read].owned]
                existing = {index for index, _ in fixed.values[name].owners()}
                assert len(owned) == len(existing)
                assert set(owned) == existing
    results = [result for each in ranks for result in each.results]
    assert {(name, *index) for name, (_, index), _ in results} == {*fixed.placed()}


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
    with (
        dgpu.enable(local_ranks=3, when="always", on_error="raise"),
        dask.config.set(split_every=split_every),
    ):
        x = da.from_array(A, chunks=chunks)
        fixed, owners, staged = planned(build(da, build(da, x)), 3)
    steps = [step for rank in range(3) for step in prepared(fixed, rank).steps]
    shipping = [
        step.work.shipping
        for step in steps
        if isinstance(step.work, Functions) and step.work.shipping is not None
    ]
    assert shipping
    assert split_every == 2 or all(step.is_recordable(NUMPY) for step in steps)
    for _, others in (each.on_host for each in shipping):
        for each in (*others.out, *others.expected):
            value = fixed.program.names[each.value]
            # nobody knows what inputs are; scalars and combined moments are not declared
            known = each.index and not value.startswith(("moment_combine-", "var-"))
            assert not known or value in fixed.program.given
    blocks = run(fixed, owners, staged, 3)
    whole = da.from_array(A, chunks=A.shape)
    wanted = build(da, build(da, whole)).compute(scheduler="sync")
    rows = [
        np.concatenate([blocks[k] for k in sorted(blocks) if k[1] == at], 1)
        for at in range(x.numblocks[0])
    ]
    np.testing.assert_allclose(np.concatenate(rows), wanted, rtol=1e-6)


def test_other_parts_have_headers() -> None:
    """Complex moments and compensated sums, and exact sums."""
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        x = da.from_array(A, chunks=4)
        exact = dgpu.sum(x, method="reproducible")
        for z in (x / (x * 1j).std(), x / dgpu.sum(x * 1j), x + exact):
            fixed, _, _ = planned(z, 3)
            steps = prepared(fixed, 0).steps
            assert not all(step.is_recordable(NUMPY) for step in steps)
