"""Programs whose steps a device has recorded: the same results, reports and memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import dask.array as da
import numpy as np
import pytest

from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import HostDevice
from dask_dgpu.kernels.device.sequences import Sequences
from dask_dgpu.runtime.execute import Observer, Span, execute
from dask_dgpu.runtime.plans import plans
from dask_dgpu.runtime.prepared import LEAST_RECORDED, prepared
from tests.support.programs import even, loaded, share, steps_of

Array = Any
N = 12
STEPS = 5


class Repeated:
    """Does the work at each launch, and writes all results where the first ones were."""

    nbytes = 1

    def __init__(self, arrays: Sequence[Array], copied: Collection[int], work: Any) -> None:
        self.work, self.ended, self.launches = work, False, 0
        self.inputs = [np.empty_like(array) for array in arrays]
        self.made: Any = None

    def launch(self, arrays: Sequence[Array]) -> Any:
        self.launches += 1
        for own, array in zip(self.inputs, arrays, strict=True):
            own[...] = array
        made = self.work(HostDevice(), self.inputs)
        if self.made is None:
            self.made = made
        for number, blocks in made[0].items():
            for index, block in blocks.items():
                self.made[0][number][index][...] = block
        return self.made

    def outside(self, block: Any) -> Any:
        made = [each for blocks in self.made[0].values() for each in blocks.values()]
        return block.copy() if any(np.shares_memory(block, each) for each in made) else block

    def end(self) -> None:
        self.ended = True


class Repeating(HostDevice):
    """A host that records."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Repeated] = []
        self.sequences = Sequences(self._record, id)

    def _record(self, *given: Any) -> Any:
        self.all.append(Repeated(*given))
        return self.all[-1]


class Held:
    """A communicator whose calls can be recorded."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.held, self.watched = inner, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def hold(self, recording: Any) -> None:
        self.held += 1

    def launched(self) -> None:
        self.watched += 1


@dataclass
class Noting(Observer):
    """Keeps the spans of a run, and can give it up."""

    spans: list[Span] = field(default_factory=list)
    given_up: bool = False

    def progress(self, step: str, done: int, steps: int) -> None:
        if self.given_up:
            raise InterruptedError

    @contextmanager
    def step(self, name: str, action: str) -> Iterator[Span]:
        with super().step(name, action) as span:
            self.spans.append(span)
            yield span

    @property
    def facts_of_steps(self) -> list[tuple[str, str, int, int]]:
        return [(s.name, s.action, s.nbytes, s.sent_bytes) for s in self.spans]


def loop(xp: Any, a: Any, v: Any) -> tuple[Any, ...]:
    """Return a vector, a sum, and a view of a value that only the recording has."""
    for _ in range(STEPS):
        v = a @ v / (v * v).sum() + v
    return v, v.sum(), (a @ v)[:, None]


class Ranks:
    """The ranks of a program with devices that record, run again and again on other data."""

    def __init__(self, z: da.Array, size: int, wrap: bool = True, **settings: Any) -> None:
        self.size, self.wrap = size, wrap
        launch, self.staged = loaded(z, size, **settings)
        # messages, as between GPUs for small blocks: windows are opened by the host
        machine = replace(launch.program.machine, one_sided=False)
        self.launch = replace(launch, program=replace(launch.program, machine=machine))
        self.owners = even(launch.program, size)
        planned = plans(self.launch.program, self.owners, size)
        self.todo = [prepared(self.launch.program, planned, rank) for rank in range(size)]
        self.devices = [Repeating() for _ in range(size)]
        self.comms: list[Any] = [None] * size

    def run(self, *factors: float, observe: Callable[[], Noting] = Noting) -> list[Run]:
        """Run once for each factor, with one communicator for all runs."""

        def rank(comm: Comm) -> list[Run]:
            at = comm.rank
            used = self.comms[at] = Held(comm) if self.wrap else comm
            found = []
            for factor in factors:
                staged = [[block * factor for block in each] for each in self.staged]
                values, observer = share(self.launch.program, self.owners, staged, at), observe()
                given = self.launch.names, used, self.devices[at], values, observer
                found.append(Run(execute(self.todo[at], *given), [observer]))
            return found

        runs = [Run({}, []) for _ in factors]
        for part in run_local(self.size, rank):
            for run, own in zip(runs, part, strict=True):
                run.blocks.update(own.blocks)
                run.observers.extend(own.observers)
        return runs

    @property
    def recordings(self) -> list[Repeated]:
        return [each for device in self.devices for each in device.all]


@dataclass
class Run:
    """All blocks of the results of a run, and the observer of each rank."""

    blocks: dict[Any, Any]
    observers: list[Noting]

    @property
    def values(self) -> Any:
        return np.concatenate([np.ravel(self.blocks[key]) for key in sorted(self.blocks)])

    @property
    def reports(self) -> list[Any]:
        return [each.facts_of_steps for each in self.observers]


@pytest.fixture
def made() -> Callable[..., Ranks]:
    rng = np.random.default_rng(7)
    a, v = rng.random((N, N)), rng.random(N)

    def make(size: int, wrap: bool = True, **settings: Any) -> Ranks:
        x, w = (da.from_array(each, chunks=(N // size, N)[: each.ndim]) for each in (a, v))
        z = da.concatenate([each.reshape(-1) for each in loop(da, x, w)])
        return Ranks(z, size, wrap, **settings)

    return make


def wanted(ranks: Ranks, factor: float) -> Any:
    v, a = sorted((np.concatenate(given) * factor for given in ranks.staged), key=np.ndim)
    return np.concatenate([np.ravel(each) for each in loop(np, a, v)])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_results_steps_and_memory_are_those_of_the_first_run(
    made: Callable[..., Ranks], size: int
) -> None:
    ranks, factors = made(size), (1.0, 1.0, 2.0, 0.5)
    runs = ranks.run(*factors)
    for run, factor in zip(runs, factors, strict=True):  # later runs have not overwritten them
        np.testing.assert_allclose(run.values, wanted(ranks, factor), rtol=1e-12)
        assert run.reports == runs[0].reports
        assert run.blocks.keys() == runs[0].blocks.keys()
    assert all(device.all for device in ranks.devices)
    assert {each.launches for each in ranks.recordings} == {3}
    for device, comm in zip(ranks.devices, ranks.comms, strict=True):
        assert comm.held == comm.watched == 3 * len(device.all)


def test_views_of_recorded_values_are_copied_too() -> None:
    """A user's function, which is in no recording, returns what it was given."""
    rng = np.random.default_rng(3)
    a = rng.random((N, N)) / N
    x = y = da.from_array(a, chunks=N)
    for _ in range(LEAST_RECORDED):
        y = y @ x + 1
    ranks = Ranks(y.map_blocks(_same, dtype=float)[1:, ::2], 1)
    factors = (1.0, 1.0, 2.0, 0.5)
    runs = ranks.run(*factors)
    assert ranks.recordings
    for run, factor in zip(runs, factors, strict=True):
        wanted = given = a * factor
        for _ in range(LEAST_RECORDED):
            wanted = wanted @ given + 1
        np.testing.assert_allclose(run.values, np.ravel(wanted[1:, ::2]), rtol=1e-12)


def _same(block: Any) -> Any:
    return block


def test_blocks_that_users_keep_stay_as_they_are() -> None:
    kept: list[Any] = []

    def keep(block: Any) -> Any:
        kept.append(block)
        return block * 0

    x = y = da.from_array(np.eye(N) / 2, chunks=N)
    for _ in range(LEAST_RECORDED):
        y = y @ x + 1
    ranks = Ranks(y.map_blocks(keep, dtype=float), 1)
    kept.clear()  # what Dask tried the function on
    factors = (1.0, 1.0, 2.0, 0.5)
    ranks.run(*factors)
    assert ranks.recordings
    assert len(kept) == len(factors)
    for block, factor in zip(kept, factors, strict=True):
        wanted = given = factor * np.eye(N) / 2
        for _ in range(LEAST_RECORDED):
            wanted = wanted @ given + 1
        np.testing.assert_allclose(block, wanted, rtol=1e-12)


def test_ranks_that_repeat_meet_others_that_do_not(made: Callable[..., Ranks]) -> None:
    ranks, factors = made(2), (1.0, 2.0, 3.0)
    ranks.devices[1].sequences = None
    for run, factor in zip(ranks.run(*factors), factors, strict=True):
        np.testing.assert_allclose(run.values, wanted(ranks, factor), rtol=1e-12)
    assert ranks.recordings


def test_calls_of_other_communicators_are_not_recorded(made: Callable[..., Ranks]) -> None:
    ranks = made(2, wrap=False)
    ranks.run(1.0, 1.0, 1.0)
    assert not ranks.recordings


def test_nothing_is_kept_without_memory_for_it(made: Callable[..., Ranks]) -> None:
    ranks = made(1, gang_kept_recordings=0)
    ranks.run(1.0, 1.0, 1.0)
    assert not ranks.recordings


def test_a_profiled_run_takes_its_steps(
    made: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = made(1)
    (first, _) = ranks.run(1.0, 1.0)
    (recorded,) = ranks.recordings
    monkeypatch.setattr(Repeating, "clock", lambda self: _Clock())
    (run,) = ranks.run(1.0, observe=Profiling)
    assert recorded.launches == 1
    assert run.reports == first.reports


def test_a_recording_has_the_time_of_the_device(
    made: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = made(1)
    monkeypatch.setattr(Repeating, "clock", lambda self: _Clock(3.0))
    first, second = (run.observers[0].spans for run in ranks.run(1.0, 1.0))
    assert not any(span.recorded for span in first)
    steps = [span for span in second if span.recorded is not None]
    assert len(steps) >= LEAST_RECORDED
    assert {span.recorded for span in steps} == {(len(steps), 3.0)}
    assert [span.seconds for span in steps] == [pytest.approx(3.0), *[0.0] * (len(steps) - 1)]


def test_a_run_that_was_given_up_launches_nothing(made: Callable[..., Ranks]) -> None:
    ranks = made(1)
    ranks.run(1.0, 1.0)
    (recorded,) = ranks.recordings
    with pytest.raises(InterruptedError):
        ranks.run(1.0, observe=lambda: Noting(given_up=True))
    assert recorded.launches == 1


class Profiling(Noting):
    """Wants the times of the device."""

    profiled = True


class _Clock:
    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.ticks = seconds, 1

    def tick(self) -> None:
        self.ticks += 1

    def seconds_ago(self) -> list[float]:
        return [self.seconds] * (self.ticks - 1) + [0.0]


def test_stretches_are_all_steps_and_users_functions_are_in_none() -> None:
    x = y = da.from_array(np.random.default_rng(1).random((N, N)), chunks=N)
    for _ in range(3):
        y = (y @ x).map_blocks(_users)
        for _ in range(STEPS):
            y = y @ x / 2
    (todo,) = Ranks(y, 1).todo
    assert [step.number for step in steps_of(todo)] == [*todo.program.numbered]
    counted = Counter(each.recordable for each in todo.stretches)
    assert counted[True] == 3
    for each in todo.stretches:
        users = [step for step in each.steps if not step.is_recordable]
        assert not (each.recordable and users)
        assert len(each.steps) >= LEAST_RECORDED or not each.recordable


def _users(block: Any) -> Any:
    return block + 1
