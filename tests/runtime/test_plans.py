"""Programs are planned once."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device.host import HostDevice
from dask_dgpu.operations.value import Value
from dask_dgpu.runtime.execute import execute
from dask_dgpu.runtime.plans import Owners, Plans, plans, received
from dask_dgpu.runtime.program import Program
from graph_opt.model.layout import dealt

RANKS = 3


def program_of(array: da.Array) -> Program:
    with dgpu.enable(local_ranks=RANKS, when="always", on_error="raise") as enabled:
        optimizer = enabled.optimizer
        ((region, _),) = optimizer.rewrite(array.dask, array.__dask_keys__()).regions
        return optimizer.program(region)


def owners_of(program: Program, shift: int = 0) -> Owners:
    counts = {name: len(value.indices()) for name, value in program.inputs}
    return {
        name: tuple((rank + shift) % RANKS for rank in dealt(count, RANKS))
        for name, count in counts.items()
    }


def product(seed: int, size: int = 12) -> da.Array:
    x, y = (da.from_array(each, 4) for each in np.random.default_rng(seed).random((2, size, size)))
    return (x @ y + 1) @ x


def test_the_same_structure_is_planned_once() -> None:
    first, second = program_of(product(0)), program_of(product(1))
    assert not {*first.names} & {*second.names}
    found = plans(first, owners_of(first), RANKS)
    again = plans(second, owners_of(second), RANKS)
    assert again.fixed is found.fixed
    assert {*again.collectives} == {
        each.output for each in second.steps if each.output in again.collectives
    }
    assert [*again.values] != [*found.values]


@pytest.mark.parametrize("change", ["owners", "ranks", "shape"])
def test_what_plans_depend_on(change: str) -> None:
    program = program_of(product(0))
    found = plans(program, owners_of(program), RANKS).fixed
    if change == "owners":
        other = plans(program, owners_of(program, shift=1), RANKS)
    elif change == "ranks":
        other = plans(program, owners_of(program), RANKS + 1)
    else:
        larger = program_of(product(0, size=16))
        other = plans(larger, owners_of(larger), RANKS)
    assert other.fixed is not found


def test_ranks_run_what_they_have_received() -> None:
    program = program_of(product(0))
    owners = owners_of(program)
    sent = plans(program, owners, RANKS)
    assert sent.fixed.payload is sent.fixed.payload
    arrays = dict(zip((name for name, _ in program.inputs), [*_inputs(product(0))], strict=True))

    def rank_program(comm: Comm) -> dict[Any, Any]:
        mine = {
            name: {
                index: arrays[name][_slices(value, index)].copy()
                for index, owner in zip(value.indices(), owners[name], strict=True)
                if owner == comm.rank
            }
            for name, value in program.inputs
        }
        fixed = Plans(program, received(sent.fixed.payload))
        return execute(program, fixed, comm, HostDevice(), mine)

    made = {}
    for part in run_local(RANKS, rank_program):
        made |= part
    assert {*made} == {*sent.placed()}
    x, y = _inputs(product(0))
    expected = (x @ y + 1) @ x
    last = program.steps[-1]
    for index in last.result.indices():
        wanted = expected[_slices(last.result, index)]
        np.testing.assert_allclose(made[last.output, *index], wanted, rtol=1e-12)


def _inputs(array: da.Array) -> list[np.ndarray]:
    return list(np.random.default_rng(0).random((2, *array.shape)))


def _slices(value: Value, index: tuple[int, ...]) -> tuple[slice, ...]:
    cuts = value.cuts
    return tuple(slice(c[i], c[i + 1]) for c, i in zip(cuts, index, strict=True))
