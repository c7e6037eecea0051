"""Ranks keep programs, and run them again under other names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from threading import Event
from typing import Any

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import HostDevice
from dask_dgpu.runtime.execute import Observer, execute
from dask_dgpu.runtime.plans import Owners
from dask_dgpu.runtime.program import Launch, Program, opened
from dask_dgpu.runtime.scheduler.run import Planned
from dask_dgpu.runtime.worker.member import Programs
from graph_opt.dask_graph import recipes
from graph_opt.dask_graph.functions import is_stateless
from graph_opt.dask_graph.internals import _broadcast_trick_inner
from tests.graph_opt.dask_graph.test_texts import held
from tests.optimizer.test_structures import Kept
from tests.support.calls import Counting
from tests.support.profiles import examples
from tests.support.programs import Staged, even, joined, share, staged_of

RANKS = 3
RNG = np.random.default_rng(41)


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    with dgpu.enable(local_ranks=RANKS, when="always", on_error="raise"):
        yield


class Noting(Observer):
    """Notes what a user sees of a rank."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def progress(self, step: str, done: int, steps: int) -> None:
        self.steps.append(step)


class Ranks:
    """Ranks as those of workers, with the programs that they keep."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.kept, self.programs, self.limit = Kept(), [Programs() for _ in range(RANKS)], limit
        self.opened = 0
        self.first = 0
        self.steps: list[str] = []

    def owners(self, program: Program) -> Owners:
        """Return even shares, or if ``first`` is not 0 others for the first blocks."""
        owners = [list(places) for places in even(program, RANKS)]
        for places in owners:
            for at in range(min(len(places), 3)):
                places[at] = (places[at] + self.first // RANKS**at) % RANKS
        return owners

    def planned(self, z: da.Array) -> tuple[Launch, Staged, Planned]:
        """Return the launch of an array, the blocks of its inputs, and its planned program."""
        launch, staged = staged_of(self.kept.optimized(z), z.given)
        program = opened(launch.program.text[0], launch.tokens)
        alone = replace(launch, program=program, tokens=None)
        return launch, staged, Planned.of(alone, (), self.owners(program), RANKS)

    def compute(self, z: da.Array) -> Any:
        """Compute an array, whose attribute ``given`` has the blocks of its inputs."""
        launch, staged, planned = self.planned(z)
        owners, watch = self.owners(launch.program), Noting()

        def rank(comm: Comm) -> dict[Any, Any]:
            job = Job(planned, comm.rank)
            todo = self.programs[comm.rank].opened(job, partial(self.send, job))
            self.programs[comm.rank].shrink(self.limit)
            mine = share(launch.program, owners, staged, comm.rank)
            observer = watch if comm.rank == 0 else Observer()
            return execute(todo, launch.names, comm, HostDevice(), mine, observer)

        found = {key: block for part in run_local(RANKS, rank) for key, block in part.items()}
        self.steps = watch.steps
        return joined(found, z.__dask_keys__())

    def send(self, job: Job) -> None:
        """Send a program that a rank has asked for."""
        self.opened += 1
        job.receive(**job.planned.sent)


class Job:
    """What a rank knows of a run."""

    text = plans = b""

    def __init__(self, planned: Planned, rank: int) -> None:
        self.planned, self.rank, self.arrived = planned, rank, Event()
        self.digest, self.tokens = planned.digest, planned.tokens

    def receive(self, text: bytes, plans: bytes) -> None:
        self.text, self.plans = text, plans
        self.arrived.set()


def named(make: Callable[..., da.Array], *values: Any) -> da.Array:
    """Return an array of held ones, with all of their blocks."""
    arrays = [held(each, 4) for each in values]
    z = make(*arrays)
    z.given = {key: block for x in arrays for key, block in x.given.items()}
    return z


def todo(ranks: Ranks) -> Any:
    """Return what the first rank does in the only program that it keeps."""
    (kept,) = ranks.programs[0]._kept.values()
    (only,) = kept._opened.values()
    return only


def scaled(factor: float) -> Callable[[Any], Any]:
    return lambda block: block * factor


PROGRAMS: dict[str, Callable[[da.Array], da.Array]] = {
    "product": lambda x: x @ x.T + 1,
    "loop": lambda x: (x @ x / x.sum()) @ x - x.mean(axis=0),
    "closure": lambda x: x.map_blocks(scaled(3.0), dtype=float) @ x,
    "reductions": lambda x: (x - x.mean(axis=0)) / x.std(axis=0) @ x.T,
    "overlap": lambda x: x.map_overlap(lambda b: b + 1, depth=1, boundary="reflect") @ x,
    "places": lambda x: x.map_blocks(lambda b, block_id=None: b + block_id[0], dtype=float) @ x,
}


@given(st.sampled_from(sorted(PROGRAMS)), st.integers(0, 99))
@examples(30)
def test_a_kept_program_has_results_of_its_own_data(case, seed):
    ranks = Ranks()
    rng = np.random.default_rng(seed)
    for _ in range(3):
        values = rng.random((9, 9)) + 0.1
        z = named(PROGRAMS[case], values)
        expected = PROGRAMS[case](da.from_array(values, chunks=4)).compute(scheduler="sync")
        np.testing.assert_allclose(ranks.compute(z), expected, rtol=1e-11, atol=1e-11)
        assert z.name in ranks.steps
    assert ranks.opened == RANKS
    assert len(ranks.kept.graphs) == 1


def test_a_kept_program_has_results_of_its_own_numbers():
    """The same program, opened anew for each number, and for none on other data."""
    ranks, found = Ranks(), []
    for c in (0.123456789, 0.987654321, 0.987654321, np.pi, 0.123456789):
        values = RNG.random((9, 9))
        z = named(lambda x, c=c: (x * c) @ x + np.float32(c), values)
        expected = (values * c) @ values + np.float32(c)
        np.testing.assert_allclose(ranks.compute(z), expected, rtol=1e-12)
        found.append(todo(ranks))
    assert ranks.opened == RANKS
    assert len(ranks.kept.graphs) == 1
    same = [one is two for one, two in pairwise(found)]
    assert same == [False, True, False, False]


def test_what_was_prepared_is_used_again():
    ranks, found = Ranks(), []
    for _ in range(2):
        ranks.compute(named(PROGRAMS["loop"], RNG.random((9, 9))))
        found.append(todo(ranks))
    assert found[0] is found[1]


@pytest.mark.parametrize("same", [True, False])
def test_functions_that_hold_a_token_see_their_own(same: bool) -> None:
    """A user may pass the name of an array, or any text like a token, to a function."""

    def tell(block: Any, text: str) -> Any:
        return block + int(text[-8:], 16)

    ranks = Ranks()
    for at in range(3):
        values = RNG.random((9, 9))
        name = held(values, 4).name if same else f"{at:032x}"
        z = named(lambda x, name=name: x.map_blocks(tell, name, dtype=float) @ x, values)
        np.testing.assert_allclose(ranks.compute(z), (values + int(name[-8:], 16)) @ values)
    assert ranks.opened == RANKS
    assert len(ranks.kept.graphs) == 1


def test_digests_are_those_of_programs():
    ranks = Ranks()
    first, second = (named(PROGRAMS["loop"], RNG.random((9, 9))) for _ in range(2))
    one, two = (ranks.planned(z)[2] for z in (first, second))
    assert one.digest == two.digest
    assert one.sent == two.sent
    assert one.tokens == b""
    others = [PROGRAMS["product"], lambda x: (x @ x / x.sum()) @ x - x.mean(axis=1)]
    digests = {ranks.planned(named(make, RNG.random((9, 9))))[2].digest for make in others}
    ranks.first = 1
    assert len(digests | {one.digest, ranks.planned(first)[2].digest}) == 4


def test_programs_used_last_are_kept():
    ranks = Ranks()
    values = RNG.random((9, 9))
    for case in ("product", "loop", "closure", "product"):
        ranks.compute(named(PROGRAMS[case], values))
    assert ranks.opened == 3 * RANKS
    programs = ranks.programs[0]
    product, loop, closure = (kept.nbytes for kept in programs._kept.values())
    assert programs._kept.total_weight == product + loop + closure
    assert len({product, loop, closure}) == 3
    for limit, left in ((closure + product, 2), (product, 1)):
        programs.shrink(limit)
        assert (len(programs), programs._kept.total_weight) == (left, limit)
    programs.shrink(product - 1)
    assert len(programs) == 0


def test_blocks_in_other_places_are_another_program():
    """Of new arrays blocks lie where a worker was free: by chance in other places each time."""
    ranks = Ranks()
    for first in (0, 1, 2, 1, 0):
        values = RNG.random((9, 9))
        z = named(PROGRAMS["loop"], values)
        ranks.first = first
        expected = (values @ values / values.sum()) @ values - values.mean(axis=0)
        np.testing.assert_allclose(ranks.compute(z), expected)
    assert ranks.opened == 3 * RANKS
    assert [len(programs) for programs in ranks.programs] == [3] * RANKS


def test_with_a_limit_of_nothing_each_run_opens_its_program():
    ranks = Ranks(limit=0)
    for _ in range(2):
        values = RNG.random((9, 9))
        np.testing.assert_allclose(
            ranks.compute(named(PROGRAMS["product"], values)), values @ values.T + 1
        )
    assert ranks.opened == 2 * RANKS
    assert not any(map(len, ranks.programs))


def test_errors_name_the_operation():
    def broken(block: Any) -> Any:
        if np.isnan(block).any():
            raise ArithmeticError("no such number")
        return block

    def make(x: da.Array) -> da.Array:
        return (x @ x.T).map_blocks(broken, dtype=float).map_blocks(np.sin) @ x

    ranks, good = Ranks(), RNG.random((9, 9))
    ranks.compute(named(make, good))
    z = named(make, np.where(good > 0.9, np.nan, good))
    with pytest.raises(ArithmeticError) as raised:
        ranks.compute(z)
    assert ranks.opened == RANKS
    assert raised.value.__notes__ == ["in broken"]


DASKS: dict[str, Callable[[da.Array], da.Array]] = {
    "products": lambda x: (x @ x.T).dot(x) + da.tensordot(x, x, axes=(0, 0)),
    "moments": lambda x: (x - x.mean(axis=0)) / x.std(axis=0) @ x,
    "extremes": lambda x: (x @ x).argmax(axis=0) + x.max(axis=1),
    "sums in order": lambda x: (x @ x).cumsum(axis=0),
    "new arrays": lambda x: da.zeros_like(x @ x) + da.ones_like(x) + da.eye(9, chunks=4) @ x,
    "slices": lambda x: da.concatenate([(x @ x)[1:], x[:1]]).T,
    "neighbours": lambda x: da.diff(x @ x, axis=0),
    "factors": lambda x: da.linalg.norm(x @ x.T, axis=0) * x,
}


@pytest.mark.parametrize("name", DASKS)
def test_nothing_of_dask_is_copied_for_each_call(name: str, monkeypatch: pytest.MonkeyPatch):
    copying = Counting(recipes._copied)
    monkeypatch.setattr(recipes, "_copied", copying)
    x = held(RNG.random((9, 9)), 4)
    ranks = Ranks()
    ranks.kept.compute(DASKS[name](x), x)
    assert copying.calls == 0
    ranks.kept.compute(DASKS[name](x).map_blocks(scaled(2.0), dtype=float) @ x, x)
    assert copying.calls > 0


def test_a_meta_is_no_value():
    """That of new arrays on GPUs has one element."""
    create = partial(_broadcast_trick_inner, meta=np.zeros(()), dtype=np.dtype("f4"))
    assert is_stateless(create)
    assert not is_stateless(partial(np.add, np.zeros(())))
    assert not is_stateless(partial(scaled(2.0), meta=np.zeros(())))
