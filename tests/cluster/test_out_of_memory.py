"""A rank that runs out of memory amid a program: planned again with less, once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, Event, get_client, wait

import dask_dgpu as dgpu
from dask_dgpu.errors import DgpuError, OutOfMemoryError
from tests.cluster.conftest import SETTINGS
from tests.cluster.faults import (
    exhaust_blocks,
    exhaust_connections,
    restore_blocks,
    restore_connections,
    watch_plans,
)
from tests.cluster.observe import PLUGIN, eventually, host, launched_runs, nothing_left

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

RNG = np.random.default_rng(43)
A, B = RNG.integers(-9, 9, (307, 211)), RNG.integers(-9, 9, (211, 190))
SENTENCE = (
    r"matmul-\w+ ran out of memory twice: with [\d.]+ \w+ planned on a rank, and with "
    r"(?:[\d.]+ \w+|the same, as no plan needs less); MemoryError: no room for [\w ]+; "
    r"set dgpu\.memory\.cap to less than [\d.]+ \w+"
)


def watch(dask_worker: Any) -> None:
    """Note in which order a worker frees what it keeps, and joins programs."""
    plugin = dask_worker.plugins[PLUGIN]
    member, plugin.noted = plugin.member, []
    release, join = member.release, member.join

    def releasing() -> None:
        assert not len(plugin.programs)
        plugin.noted.append("release")
        release()

    def joining(**fields: Any) -> Any:
        plugin.noted.append("join")
        return join(**fields)

    member.release, member.join = releasing, joining


def noted(dask_worker: Any) -> list[str]:
    return list(dask_worker.plugins[PLUGIN].noted)


def mend(dask_worker: Any) -> None:
    restore_blocks()
    restore_connections()
    plugin = dask_worker.plugins[PLUGIN]
    vars(plugin.member).pop("release", None)
    vars(plugin.member).pop("join", None)
    vars(plugin).pop("noted", None)


@pytest.fixture
def flag(client: Client, tmp_path: Path) -> Iterator[Path]:
    """The file that ends failures; the workers are mended in the end."""
    yield tmp_path / "enough"
    client.run(mend)


@pytest.fixture
def tried(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets what each run on the scheduler was planned for."""
    found: list[Any] = []
    watch_plans(monkeypatch, after=lambda run: found.append(run.planned.tried))
    return found


@pytest.fixture(params=["one rank", "all ranks"])
def once(
    request: pytest.FixtureRequest, client: Client, flag: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], None]:
    """Return a function that has the next run fail, on the first rank that multiplies or on all."""
    everywhere = request.param == "all ranks"
    watch_plans(monkeypatch, before=lambda run: flag.touch() if run.less else None)

    def spoil() -> None:
        client.run(exhaust_blocks, flag, everywhere)

    return spoil


@pytest.fixture(params=["tasks", "no tasks"])
def operands(request: pytest.FixtureRequest, on_device: Any, in_memory: Any) -> list[da.Array]:
    """Return two matrices, made by the graph or in memory, so that no task of the gang runs."""
    make = on_device if request.param == "tasks" else in_memory
    return [make(A, 60), make(B, (60, 50))]


def check(z: da.Array, wanted: Any) -> None:
    np.testing.assert_array_equal(host(z.compute()), wanted)


@pytest.mark.parametrize(
    ("operands", "once"),
    [
        ("tasks", "one rank"),
        ("no tasks", "all ranks"),
        pytest.param("tasks", "all ranks", marks=pytest.mark.slow),
        pytest.param("no tasks", "one rank", marks=pytest.mark.slow),
    ],
    indirect=True,
)
def test_it_runs_again_with_less(
    client: Client, operands: list[da.Array], in_memory: Any, once: Any, tried: Any
) -> None:
    x, y = operands
    other = in_memory(A, 100)
    check(x @ y, A @ B)
    before = launched_runs(client)
    tried.clear()
    client.run(watch)
    once()
    check((x @ y) + 1, A @ B + 1)
    assert launched_runs(client) == before + 2
    first, second = tried
    assert first is None
    assert 0 < second.second_bytes <= second.first_bytes
    for events in client.run(noted).values():  # all had freed what they kept
        assert events[0] == events[-1] == "join"
        assert events.count("join") == 2
        assert "release" in events
    check((x @ y) + 2, A @ B + 2)
    assert tried[2:] == [None]  # as if nothing had happened
    check(other, A)
    held = [other, *(each for each in operands if each.name in names(client))]
    nothing_left(client, *held)


def names(client: Client) -> set[str]:
    """Return the names of arrays whose blocks the client holds."""
    return {key[0] for key in client.futures if isinstance(key, tuple)}


@pytest.mark.parametrize(
    "operands", ["no tasks", pytest.param("tasks", marks=pytest.mark.slow)], indirect=True
)
def test_a_second_time_is_one_sentence(
    client: Client, operands: list[da.Array], in_memory: Any, flag: Path, tried: Any
) -> None:
    x, y = operands
    other = in_memory(A, 100)
    before = launched_runs(client)
    client.run(exhaust_blocks, flag, everywhere=True)
    with pytest.raises(OutOfMemoryError) as caught:
        (x @ y).compute()
    error = caught.value
    assert re.fullmatch(SENTENCE, str(error))
    assert isinstance(error, MemoryError)
    assert isinstance(error, DgpuError)
    assert tried[-1][1:] == (error.first_bytes, error.second_bytes)
    (place,) = [note for note in error.__notes__ if note.startswith("on rank ")]
    assert any(worker in place for worker in client.scheduler_info()["workers"])
    assert "phase program" in place
    assert launched_runs(client) == before + 2
    del error, caught
    flag.touch()
    check((x @ y) + 1, A @ B + 1)
    assert len(tried) == 3
    check(other, A)
    held = [other, *(each for each in operands if each.name in names(client))]
    nothing_left(client, *held)


@pytest.mark.parametrize(
    ("operands", "times"),
    [
        ("tasks", 1),
        pytest.param("no tasks", 2, marks=pytest.mark.slow),
        pytest.param("tasks", 2, marks=pytest.mark.slow),
        pytest.param("no tasks", 1, marks=pytest.mark.slow),
    ],
    indirect=["operands"],
)
def test_ranks_cannot_connect(
    client: Client, device: str, operands: list[da.Array], flag: Path, tried: Any, times: int
) -> None:
    x, y = operands
    with dgpu.enable(client, comm="tcp" if device == "cpu" else "nccl", **SETTINGS):
        check(x @ y, A @ B)  # once they have connected, ranks do so no more
        client.run_on_scheduler(leave_all)
        client.run(exhaust_connections, flag, everywhere=times == 2)
        before = launched_runs(client)
        tried.clear()
        if times == 1:
            check((x @ y) - 1, A @ B - 1)
        else:
            with pytest.raises(OutOfMemoryError) as caught:
                ((x @ y) - 1).compute()
            assert re.fullmatch(SENTENCE, str(caught.value))
            assert any("phase connect" in note for note in caught.value.__notes__)
            del caught
            flag.touch()
        assert launched_runs(client) == before + 2
        assert [each is None for each in tried] == [True, False]
        check((x @ y) + 1, A @ B + 1)
    nothing_left(client, *[each for each in operands if each.name in names(client)])


def leave_all(dask_scheduler: Any) -> None:
    dask_scheduler.plugins[PLUGIN].epochs.clear()


@pytest.mark.slow
def test_a_second_computation_begins_anew(
    client: Client, in_memory: Any, flag: Path, tried: Any
) -> None:
    x, y = in_memory(A, 60), in_memory(B, (60, 50))
    client.run(exhaust_blocks, flag, everywhere=True)
    future = client.compute(x @ y)
    wait(future)
    assert isinstance(future.exception(), OutOfMemoryError)
    assert not client.run_on_scheduler(short)
    future.release()
    nothing_left(client, x, y)
    flag.touch()
    future = client.compute(x @ y)
    np.testing.assert_array_equal(host(future.result(timeout=60)), A @ B)
    assert [each is None for each in tried] == [True, False, True]
    del future
    nothing_left(client, x, y)


@pytest.mark.slow
def test_others_on_the_communicator_run_too(client: Client, in_memory: Any, flag: Path) -> None:
    x, y = in_memory(A, 60), in_memory(B, (60, 50))
    check(x @ y, A @ B)
    client.run(exhaust_blocks, flag, everywhere=False)
    found = [((x + i) @ y).persist() for i in range(4)]
    for i, each in enumerate(found):
        check(each, (A + i) @ B)
    nothing_left(client, x, y, *found)


@pytest.mark.parametrize("times", [1, pytest.param(9, marks=pytest.mark.slow)])
def test_functions_of_users(client: Client, on_device: Any, times: int) -> None:
    """Work between collectives fails until an event, or always."""
    name = f"out of memory {times}"
    Event(name, client=client).clear()

    def exhausted(block: Any) -> Any:
        event = Event(name, client=get_client())
        if times > 1 or not event.is_set():
            event.set()
            raise MemoryError("my own")
        return block

    x = on_device(A, 60)
    z = (x.T @ x).map_blocks(exhausted, dtype=x.dtype, meta=x._meta) + 1
    before = launched_runs(client)
    if times == 1:
        check(z, A.T @ A + 1)
    else:
        with pytest.raises(OutOfMemoryError, match=r"twice: with .*; MemoryError: my own; set"):
            z.compute()
    assert launched_runs(client) == before + 2
    nothing_left(client)


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_profilers_see_the_last_run(client: Client, in_memory: Any, flag: Path, times: int) -> None:
    x, y = in_memory(A, 60), in_memory(B, (60, 50))
    client.run(exhaust_blocks, flag, everywhere=times == 2)
    with dgpu.Profiler() as prof:
        if times == 1:
            check(x @ y, A @ B)
        else:
            with pytest.raises(OutOfMemoryError):
                (x @ y).compute()
    found = prof.to_dict()
    assert found["gangs"] == 2 - times
    eventually(lambda: not client.run_on_scheduler(short))


def short(dask_scheduler: Any) -> int:
    return sum(past.short for past in dask_scheduler.plugins[PLUGIN].endings.past.values())
