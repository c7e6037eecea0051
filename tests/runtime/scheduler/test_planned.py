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
from dask_dgpu.runtime.plans import plans
from dask_dgpu.runtime.program import Launch, opened
from dask_dgpu.runtime.scheduler.run import Planned, Run
from tests.graph_opt.dask_graph.test_texts import PROGRAMS, held
from tests.optimizer.test_structures import Kept
from tests.support.profiles import examples
from tests.support.programs import launches_of, placed_by

RNG = np.random.default_rng(23)
MEMBERS = ("tcp://127.0.0.1:1", "tcp://127.0.0.1:2", "tcp://127.0.0.1:3")


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        yield


def planned(launch: Launch, kept: dict[Any, Planned], first: int = 0, *, less: bool = False) -> Run:
    """Return a planned run whose blocks are dealt out one by one, the first to this member."""
    members = cycle([*MEMBERS[first:], *MEMBERS[:first]])
    inputs = zip(launch.names, launch.program.inputs, strict=False)
    staged = [
        [(f"{name}-{index}", next(members)) for index in value.indices()] for name, value in inputs
    ]

    async def plan() -> Run:
        run = Run(("gang",), 0, launch, staged, members=MEMBERS, less=less)
        await run.plan(kept)
        return run

    return asyncio.run(plan())


def tokens_sent(run: Run) -> bytes:
    tokens: bytes = run.launch_message(0)["tokens"]
    return tokens


@given(st.sampled_from(sorted(PROGRAMS)), st.sampled_from(sorted(PROGRAMS)))
@examples(20)
def test_a_known_program_has_its_own_names_and_the_same_plans(first, second):
    def make() -> da.Array:
        x = held(RNG.random((7, 7)), 3)
        y = PROGRAMS[first](x)
        return PROGRAMS[second](y if y.shape == x.shape else x + y.sum())

    structures, kept = Kept(), dict[Any, Planned]()
    both = (launches_of(structures.optimized(make())) for _ in range(2))
    for before, launch in zip(*both, strict=True):
        planned(before, kept)
        known = len(kept)
        run = planned(launch, kept)
        program = opened(launch.program.text[0], launch.tokens)
        alone = planned(replace(launch, program=program, tokens=None), {})
        assert len(kept) == known
        assert run.planned.sent == alone.planned.sent
        assert tokens_sent(run) == tokens_sent(alone)
        assert run.placed == alone.placed
        assert run.planned.collectives == alone.planned.collectives
        expected = plans(launch.program, run.owners, len(MEMBERS))
        assert run.placed == placed_by(launch, expected)
        assert run.planned.collectives == expected.collectives


def test_places_and_free_memory_count():
    (launch,) = launches_of(Kept().optimized((x := held(RNG.random((8, 8)), 3)) @ x))
    kept = dict[Any, Planned]()
    for room, first, known in [(None, 0, 1), (None, 0, 1), (None, 1, 2), (1e9, 1, 3), (1e9, 0, 4)]:
        planned(replace(launch, program=replace(launch.program, room=room)), kept, first)
        assert len(kept) == known
    planned(replace(launch, tokens=None), kept)
    assert len(kept) == 4


def test_a_second_run_has_plans_of_its_own():
    structures, kept = Kept(), dict[Any, Planned]()
    for _ in range(2):
        x = held(RNG.random((300, 300)), 90)
        (launch,) = launches_of(structures.optimized(x @ x))
        first, second = (planned(launch, kept, less=less).planned for less in (False, True))
        assert len(kept) == 2
        assert first.tried is None
        assert second.tried is not None
        assert 0 < second.tried.second_bytes < second.tried.first_bytes
        assert first.digest != second.digest
        again = planned(launch, kept).planned
        assert again.digest == first.digest
        assert again.tried is None


def test_other_numbers_are_a_known_program():
    structures, kept = Kept(), dict[Any, Planned]()
    x = held(RNG.random((8, 8)), 3)
    digests = set()
    for step in (0.123456789, 0.987654321):
        (launch,) = launches_of(structures.optimized((x @ x) * step))
        run = planned(launch, kept)
        digests.add(run.planned.digest)
    assert len(structures.graphs) == len(kept) == len(digests) == 1


def test_a_program_of_other_chunks_is_another():
    structures, kept = Kept(), dict[Any, Planned]()
    values = RNG.random((8, 8))
    for chunks in (3, 4):
        (launch,) = launches_of(structures.optimized((x := held(values, chunks)) @ x))
        planned(launch, kept)
    assert len(kept) == 2
