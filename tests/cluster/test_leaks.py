"""Computations in a row leave nothing behind, on workers, scheduler and client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait

import dask_dgpu as dgpu
from tests.cluster.conftest import SETTINGS, start_cluster
from tests.cluster.observe import PLUGIN, eventually

SIZE, CHUNK = 512, 128
WARM_UP, ROUNDS = 60, 300

MOST_GROWTH = 20 * 2**20
"""Bytes of one process from the warm-up to the end.

One block of 128 KiB that each computation left on a worker would be 30 MiB, and one result at
the client 480. What allocators keep and what Dask fills once is less than this.
"""

SMALL, SMALL_WARM_UP, SMALL_PRODUCTS = 64, 150, 1000
KINDS_OF_PRODUCTS = 6
"""Structures of small products: by what is read, and by where blocks lie at first."""

COMPUTATIONS, STRUCTURES, NEW_WARM_UP = 3000, 300, 300
DASKS_SHARE = 40_000
"""Bytes that plain Dask's workers and scheduler grow by in each computation: its spans."""

MOST_OBJECTS = 2000
"""Objects of the last plans of a program, which vary with the places of blocks."""

FEW = 50
"""Objects that are there now and then, such as those of the last run."""

LONGEST_LOG = 50
SHORT_LOGS = {
    "distributed.admin.low-level-log-length": LONGEST_LOG,
    "distributed.admin.log-length": LONGEST_LOG,
}
"""Dask's own logs are full after the warm-up."""

KINDS: dict[str, tuple[Callable[[da.Array, da.Array], da.Array], Callable[[Any, Any], Any]]] = {
    "matmul": (lambda x, y: x @ y, lambda a, b: a @ b),
    "fft2": (lambda x, y: da.fft.fft2(x), lambda a, b: np.fft.fft2(a)),
    "region": (lambda x, y: ((x @ y) + x.T).sum(axis=0), lambda a, b: (a @ b + a.T).sum(axis=0)),
    "sum": (lambda x, y: dgpu.sum(x * y, axis=1), lambda a, b: (a * b).sum(axis=1)),
    "rechunk": (lambda x, y: x.rechunk((32, SIZE)), lambda a, b: a),
    "map_overlap": (
        lambda x, y: da.map_overlap(smooth, x, depth=1, boundary="periodic", dtype="f8"),
        lambda a, b: smooth(a),
    ),
}


def smooth(block: Any) -> Any:
    return block + np.roll(block, 1, 0) + np.roll(block, -1, 1)


def sizes_of_process() -> dict[str, int]:
    """Runs on the event loop of a worker or the scheduler."""
    import asyncio
    import ctypes
    import gc
    import platform

    import psutil

    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
    process = psutil.Process()
    return {
        "memory": process.memory_info().rss,
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "coroutines": len(asyncio.all_tasks()),
    }


def own_objects() -> dict[str, int]:
    """Count what garbage collection sees, and those of types of this project."""
    import gc
    from collections import Counter

    gc.collect()
    found = Counter(str(type(each).__module__).partition(".")[0] for each in gc.get_objects())
    return {name: found[name] for name in ("dask_dgpu", "graph_opt")} | {"all": found.total()}


def worker_tables(given: tuple[str, str], dask_worker: Any) -> dict[str, int]:
    plugin = dask_worker.plugins[PLUGIN]
    return {
        "staged": len(plugin.staged),
        "unwanted": len(plugin.unwanted),
        "results": len(plugin.results),
        "stored": len(plugin.stored),
        "jobs": len(plugin.jobs),
        "queue": plugin.queue.qsize(),
        "communicators": len(plugin.member._comms),
        "joining": len(plugin.member._joining),
        "left": len(plugin.member._left),
        # Dask copies a block to a worker that reads it, so those of x and y may be on every one
        "others": sum(key[0] not in given for key in dask_worker.state.tasks),
    }


def scheduler_tables(dask_scheduler: Any) -> dict[str, int]:
    plugin = dask_scheduler.plugins[PLUGIN]
    return {
        "runs": len(plugin.runs),
        "staging": len(plugin.launches.staging.workers),
        "epochs": len(plugin.epochs._kept),
        "losses": len(plugin.endings.past),
        "tasks": len(dask_scheduler.tasks),
    }


def structures(dask_scheduler: Any) -> dict[str, int]:
    """What is kept for graphs of known structures."""
    plugin = dask_scheduler.plugins[PLUGIN]
    return {
        "optimized": len(plugin.structures),
        "sent": sum(map(len, plugin.launches.sent.values())),
        "records": len(plugin.records._records),
        "placed": len(plugin.new_arrays._placed),
    }


def events(dask_scheduler: Any) -> dict[str, int]:
    return {topic: len(found) for topic, found in dask_scheduler.get_events().items()}


def tables(client: Client, given: tuple[str, str]) -> list[dict[str, int]]:
    workers = client.run(worker_tables, given)
    return [client.run_on_scheduler(scheduler_tables), *(workers[name] for name in sorted(workers))]


def processes(client: Client) -> list[dict[str, int]]:
    """The scheduler, which is in this process, and then the workers."""
    workers = client.run(sizes_of_process)
    return [
        client.run_on_scheduler(sizes_of_process),
        *(workers[name] for name in sorted(workers)),
    ]


def coroutines_end(client: Client, before: list[dict[str, int]]) -> bool:
    """Whether no process has many more than before; on a busy machine some last longer."""
    now = processes(client)
    return all(b["coroutines"] <= a["coroutines"] + 8 for a, b in zip(before, now, strict=True))


@pytest.fixture
def client() -> Iterator[Client]:
    with (
        dask.config.set(SHORT_LOGS),
        start_cluster("cpu") as cluster,
        Client(cluster) as client,
        dgpu.enable(client, **SETTINGS),
    ):
        yield client


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_computations_leave_nothing_behind(client: Client) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((SIZE, SIZE)), rng.random((SIZE, SIZE))
    x, y = dask.persist(da.from_array(a, chunks=CHUNK), da.from_array(b, chunks=CHUNK))
    wait([x, y])
    kinds = list(KINDS.values())

    def compute(rounds: range) -> None:
        for number in rounds:
            lazy, expected = kinds[number % len(kinds)]
            # names that are new, and blocks in the workers' memory or made by the gang
            given = (x, y + number) if number % 2 else (x + number, y)
            if number < len(kinds):
                arrays = (a, b + number) if number % 2 else (a + number, b)
                result = lazy(*given).compute()
                np.testing.assert_allclose(result, expected(*arrays), rtol=1e-10, atol=1e-9)
            elif number % 4:
                wait(lazy(*given).persist())  # and nobody reads it
            else:
                lazy(*given).compute()

    def idle() -> list[dict[str, int]] | None:
        found = tables(client, (x.name, y.name))
        held = found[0]["runs"] + found[0]["staging"]
        held += sum(
            each["staged"] + each["results"] + each["jobs"] + each["others"] for each in found[1:]
        )
        return None if held or found[0]["tasks"] > 2 * (SIZE // CHUNK) ** 2 else found

    compute(range(WARM_UP))
    tables_before = eventually(idle)
    before, events_before = processes(client), client.run_on_scheduler(events)
    compute(range(WARM_UP, ROUNDS))
    assert eventually(idle) == tables_before
    assert tables_before[0]["epochs"] == 1
    logged = client.run_on_scheduler(events)
    assert logged.keys() <= events_before.keys() | {"stealing"}
    assert max(logged.values()) <= LONGEST_LOG
    for old, new in zip(before, processes(client), strict=True):
        assert new["memory"] < old["memory"] + MOST_GROWTH
        # Dask opens a few connections more when the workers are busy, and closes them late
        assert new["descriptors"] <= old["descriptors"] + 8
        assert new["threads"] <= old["threads"] + 4
    eventually(lambda: coroutines_end(client, before))


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_thousand_small_products_leave_nothing_behind(client: Client) -> None:
    """Of new data and with a new number each; half of them are read."""
    a = np.random.default_rng(0).random((SMALL, SMALL))
    x = da.from_array(a, chunks=SMALL // 2).persist()
    wait(x)

    def compute(rounds: range) -> None:
        for number in rounds:
            factor = 1 / (number + np.e)
            z = (x * factor) @ x
            if number % 2:
                wait(z.persist())
            else:
                np.testing.assert_allclose(z.sum().compute(), (a * factor @ a).sum(), rtol=1e-10)

    def idle() -> list[dict[str, int]] | None:
        found = tables(client, (x.name, x.name))
        clean = not found[0]["runs"] and found[0]["tasks"] == x.npartitions
        return found if clean and not any(each["others"] for each in found[1:]) else None

    def objects() -> list[dict[str, int]]:
        workers = client.run(own_objects)
        return [own_objects(), *(workers[name] for name in sorted(workers))]

    compute(range(SMALL_WARM_UP))
    tables_before, structures_before = eventually(idle), client.run_on_scheduler(structures)
    before, objects_before = processes(client), objects()
    compute(range(SMALL_WARM_UP, SMALL_PRODUCTS))
    assert eventually(idle) == tables_before
    assert client.run_on_scheduler(structures) == structures_before
    assert structures_before["optimized"] <= KINDS_OF_PRODUCTS
    rounds = SMALL_PRODUCTS - SMALL_WARM_UP
    for at, (old, new) in enumerate(zip(objects_before, objects(), strict=True)):
        assert new["dask_dgpu"] <= old["dask_dgpu"] + FEW
        assert new["graph_opt"] <= old["graph_opt"] + FEW
        # Dask's scheduler keeps a span of each computation, with its task groups
        assert at == 0 or new["all"] < old["all"] + rounds
    for old, new in zip(before, processes(client), strict=True):
        assert new["memory"] < old["memory"] + MOST_GROWTH
        assert new["threads"] <= old["threads"] + 4
    eventually(lambda: coroutines_end(client, before))


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [COMPUTATIONS, STRUCTURES], ids=["computations", "structures"])
def test_computations_on_new_arrays_leave_nothing_behind(client: Client, count: int) -> None:
    """Of one structure each, whose blocks lie where a worker was free, or of another each."""
    a = np.random.default_rng(0).random((16, 16))

    def compute(rounds: range) -> None:
        for number in rounds:
            x = da.from_array(a + number % 7, chunks=8)
            z = (x @ x.T).sum(axis=0)
            if count == STRUCTURES:
                z = z + number
            found = z.compute()
            if not number % 10:
                b = a + number % 7
                expected = (b @ b.T).sum(axis=0) + (number if count == STRUCTURES else 0)
                np.testing.assert_allclose(found, expected, rtol=1e-10)

    def objects() -> list[dict[str, int]]:
        eventually(lambda: client.run_on_scheduler(scheduler_tables)["runs"] == 0)
        workers = client.run(own_objects)
        return [own_objects(), *(workers[name] for name in sorted(workers))]

    warm_up = min(NEW_WARM_UP, count // 2)
    compute(range(warm_up))
    before, objects_before = processes(client), objects()
    compute(range(warm_up, count))
    rounds = count - warm_up
    kept = client.run_on_scheduler(structures)
    if count == COMPUTATIONS:
        assert kept["optimized"] <= 2
        for old, new in zip(objects_before, objects(), strict=True):
            assert new["dask_dgpu"] <= old["dask_dgpu"] + MOST_OBJECTS
            assert new["graph_opt"] <= old["graph_opt"] + MOST_OBJECTS
    for old, new in zip(before, processes(client), strict=True):
        assert new["memory"] < old["memory"] + MOST_GROWTH + rounds * DASKS_SHARE
        assert new["descriptors"] <= old["descriptors"] + 8
        assert new["threads"] <= old["threads"] + 4
    eventually(lambda: coroutines_end(client, before))
