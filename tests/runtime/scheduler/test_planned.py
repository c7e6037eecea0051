"""Programs that were planned before: under other names, with the same plans."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from typing import Any

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from dask_dgpu.runtime.package import opened
from dask_dgpu.runtime.plans import plans
from dask_dgpu.runtime.program import Program
from dask_dgpu.runtime.scheduler.planned import Planned
from dask_dgpu.runtime.scheduler.run import Run
from graph_opt.dask_graph.emit import is_gang
from tests.graph_opt.dask_graph.test_renaming import PROGRAMS, held
from tests.planner.test_structures import Kept
from tests.support.profiles import examples

RNG = np.random.default_rng(23)
MEMBERS = ("tcp://127.0.0.1:1", "tcp://127.0.0.1:2", "tcp://127.0.0.1:3")


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        yield


def programs(kept: Kept, z: da.Array) -> list[Program]:
    return [task.args[0] for key, task in kept.optimized(z).items() if is_gang(key)]


def planned(
    program: Program, kept: dict[Any, Planned], first: int = 0, *, less: bool = False
) -> Run:
    """Return a planned run whose blocks are dealt out one by one, the first to this member."""
    members = cycle([*MEMBERS[first:], *MEMBERS[:first]])
    staged = [
        [(f"{name}-{index}", next(members)) for index in value.indices()]
        for name, value in program.inputs
    ]

    async def plan() -> Run:
        run = Run(("gang",), 0, program, staged, members=MEMBERS, less=less)
        await run.plan(kept)
        return run

    return asyncio.run(plan())


@given(st.sampled_from(sorted(PROGRAMS)), st.sampled_from(sorted(PROGRAMS)))
@examples(20)
def test_a_known_program_has_its_own_names_and_the_same_plans(first, second):
    def make() -> da.Array:
        x = held(RNG.random((7, 7)), 3)
        y = PROGRAMS[first](x)
        return PROGRAMS[second](y if y.shape == x.shape else x + y.sum())

    structures, kept = Kept(), dict[Any, Planned]()
    for before, program in zip(*(programs(structures, make()) for _ in range(2)), strict=True):
        planned(before, kept)
        known = len(kept)
        run = planned(program, kept)
        alone = planned(replace(program, form=None), {})
        assert len(kept) == known
        assert run.package == alone.package
        assert run.tokens == alone.tokens
        assert run.placed == alone.placed
        assert run.collectives == alone.collectives
        expected = plans(program, run.owners, len(MEMBERS))
        assert run.placed == expected.placed()
        assert run.collectives == expected.collectives
        tokens = [run.tokens[at : at + 32] for at in range(0, len(run.tokens), 32)]
        assert opened(run.package.text, tokens).names == program.names


def test_places_and_free_memory_count():
    (program,) = programs(Kept(), (x := held(RNG.random((8, 8)), 3)) @ x)
    kept = dict[Any, Planned]()
    for room, first, known in [(None, 0, 1), (None, 0, 1), (None, 1, 2), (1e9, 1, 3), (1e9, 0, 4)]:
        planned(replace(program, room=room), kept, first)
        assert len(kept) == known
    planned(replace(program, form=None), kept)
    assert len(kept) == 4


def test_a_second_run_has_plans_of_its_own():
    structures, kept = Kept(), dict[Any, Planned]()
    for _ in range(2):
        x = held(RNG.random((300, 300)), 90)
        (program,) = programs(structures, x @ x)
        first, second = (planned(program, kept, less=less) for less in (False, True))
        assert len(kept) == 2
        assert first.tried is None
        assert second.tried is not None
        assert second.tried.name == program.name
        assert 0 < second.tried.second_bytes < second.tried.first_bytes
        assert first.package.digest != second.package.digest
        again = planned(program, kept)
        assert again.package == first.package
        assert again.tried is None


def test_other_numbers_are_a_known_program():
    structures, kept = Kept(), dict[Any, Planned]()
    x = held(RNG.random((8, 8)), 3)
    digests = set()
    for step in (0.123456789, 0.987654321):
        (program,) = programs(structures, (x @ x) * step)
        run = planned(program, kept)
        digests.add(run.package.digest)
    assert len(structures.graphs) == len(kept) == len(digests) == 1


def test_a_program_of_other_chunks_is_another():
    structures, kept = Kept(), dict[Any, Planned]()
    values = RNG.random((8, 8))
    for chunks in (3, 4):
        (program,) = programs(structures, (x := held(values, chunks)) @ x)
        planned(program, kept)
    assert len(kept) == 2
