"""Arrays in zarr that do not fit the workers: read one part ahead, and written behind."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from distributed import Client
from distributed.diagnostics.plugin import SchedulerPlugin

import dask_dgpu as dgpu
from tests.cluster.conftest import SETTINGS, start_cluster
from tests.cluster.losses import restore_programs, slow_programs
from tests.cluster.observe import (
    eventually,
    launched_runs,
    left_over,
    nothing_left,
    send_signal,
    settled,
)

GANG, STAGE = "dgpu-gang", "dgpu-stage"
"""Prefixes of the keys of a gang's tasks."""

pytestmark = pytest.mark.cluster

N, CHUNK = 256, 32
A = np.random.default_rng(8).integers(-9, 10, (N, N)).astype(float)
THIN = np.random.default_rng(9).integers(-9, 10, (N, CHUNK)).astype(float)
Event = tuple[Any, str, str]


class Transitions(SchedulerPlugin):
    """Notes what becomes of all tasks, in order: keys, and states before and after."""

    name = "transitions"

    def __init__(self) -> None:
        self.events: list[Event] = []

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        self.events.append((key, start, finish))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two workers, whose programs take long enough for all blocks to be read meanwhile."""
    with start_cluster("cpu", n_workers=2) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Any) -> Iterator[Client]:
    with Client(cluster) as client, dgpu.enable(client, **SETTINGS):
        client.register_plugin(Transitions())
        yield client
        client.unregister_scheduler_plugin(Transitions.name)


@pytest.fixture
def slow(client: Client) -> Iterator[None]:
    slow_programs(client, 0.2)
    yield
    client.run(restore_programs)


def limited(client: Client, limit: str) -> Any:
    return dgpu.enable(client, **SETTINGS, memory_limit=limit, memory_safety_margin=0)


def stored(path: Path, name: str, values: Any) -> da.Array:
    """Return an array that lies in zarr, in chunks of ``CHUNK``."""
    array = zarr.create_array(
        path / name, shape=values.shape, chunks=(CHUNK, CHUNK), dtype=values.dtype
    )
    array[:] = values
    return da.from_zarr(str(path / name))


def written(path: Path) -> Any:
    return zarr.open_array(path)[:]


def parts_of(z: da.Array) -> int:
    ((_, prediction),) = dgpu.explain(z).regions
    assert prediction.parts > 3
    return prediction.parts


def recorded(client: Client, run: Callable[[], Any]) -> list[Event]:
    """Return the transitions of all tasks of a computation."""

    def taken(dask_scheduler: Any) -> list[Event]:
        plugin = dask_scheduler.plugins[Transitions.name]
        events, plugin.events = plugin.events, []
        return events

    client.run_on_scheduler(taken)
    run()
    nothing_left(client)
    return client.run_on_scheduler(taken)


def named(key: Any, name: str) -> bool:
    return isinstance(key, tuple) and key[0].startswith(name)


def most_alive(events: list[Event], name: str) -> int:
    """Return how many results with a name, or a name that begins with it, exist at a time."""
    alive: set[Any] = set()
    most = 0
    for key, _, finish in events:
        if named(key, name):
            (alive.add if finish == "memory" else alive.discard)(key)
            most = max(most, len(alive))
    return most


def first(events: list[Event], finish: str) -> dict[Any, int]:
    """Return when each task was first in a state."""
    times: dict[Any, int] = {}
    for at, (key, _, state) in enumerate(events):
        if state == finish:
            times.setdefault(key, at)
    return times


class Parts:
    """The gangs of a computation in their order: their end, and what they read and return."""

    def __init__(self, events: list[Event], result: str) -> None:
        done = first(events, "memory")
        tokens = [key[0].removeprefix(f"{GANG}-") for key in done if named(key, GANG)]
        self.ends = [done[f"{GANG}-{token}", 0] for token in tokens]
        read: defaultdict[Any, set[int]] = defaultdict(set)
        self.returned: dict[Any, int] = {}
        for key in done:
            ends = [isinstance(key, tuple) and key[0].endswith(token) for token in tokens]
            part = ends.index(True) if any(ends) else None
            if part is not None and named(key, f"{STAGE}-0"):
                read[key[1:]].add(part)
            elif part is not None and named(key, result):
                self.returned[key[1:]] = part
        self.read = {index: min(several) for index, several in read.items()}

    @property
    def most_read(self) -> int:
        return max(Counter(self.read.values()).values())

    @property
    def most_returned(self) -> int:
        return max(Counter(self.returned.values()).values())


@pytest.mark.parametrize(
    ("make", "wanted", "limit"),
    [
        (lambda x, _: dgpu.fft.fft(x, axis=0), np.fft.fft(A, axis=0), "170 kiB"),
        (lambda x, thin: x @ thin, A @ THIN, "100 kiB"),
    ],
    ids=["transform", "product"],
)
@pytest.mark.usefixtures("slow")
def test_blocks_are_read_one_part_ahead(
    client: Client, tmp_path: Path, make: Any, wanted: Any, limit: str
) -> None:
    x, thin = stored(tmp_path, "x", A), stored(tmp_path, "thin", THIN)
    with limited(client, limit):
        z = make(x, thin)
        count = parts_of(z)
        events = recorded(client, lambda: z.to_zarr(str(tmp_path / "z")))
    np.testing.assert_allclose(written(tmp_path / "z"), wanted, rtol=0, atol=1e-9)
    parts, begun, done = Parts(events, z.name), first(events, "processing"), first(events, "memory")
    assert len(parts.ends) == count
    assert most_alive(events, x.name) <= 2 * parts.most_read < x.npartitions / 2
    ahead = set()
    for key in done:
        if named(key, x.name):
            part = parts.read[key[1:]]
            # not before the part before the one before has ended
            assert part < 2 or begun[key] > parts.ends[part - 2]
            if part > 0 and done[key] < parts.ends[part - 1]:
                ahead.add(part)
    assert ahead == set(range(1, count))


@pytest.mark.usefixtures("slow")
def test_results_are_written_behind(client: Client, tmp_path: Path) -> None:
    x = stored(tmp_path, "x", A)
    with limited(client, "170 kiB"):
        z = dgpu.fft.fft(x, axis=0)
        count = parts_of(z)
        events = recorded(client, lambda: z.to_zarr(str(tmp_path / "z")))
    parts, done = Parts(events, z.name), first(events, "memory")
    writes = [(parts.returned[key[1:]], at) for key, at in done.items() if named(key, "store-map")]
    assert len(writes) == z.npartitions
    assert all(at < parts.ends[part + 2] for part, at in writes if part + 2 < count)
    assert {part for part, at in writes if at < parts.ends[min(part + 1, count - 1)]} >= {
        *range(count - 1)
    }
    assert most_alive(events, z.name) <= 2 * parts.most_returned < z.npartitions / 2


def test_work_without_collectives_keeps_no_block(client: Client, tmp_path: Path) -> None:
    """A task reads a block, uses it, and returns a small one or writes it."""
    x = stored(tmp_path, "x", A)
    y, found = da.exp(x / 9) + x, []
    with limited(client, "100 kiB"):
        events = recorded(client, lambda: y.to_zarr(str(tmp_path / "y")))
        events += recorded(client, lambda: found.append(x.sum().compute()))
    np.testing.assert_array_equal(written(tmp_path / "y"), np.exp(A / 9) + A)
    assert found == [A.sum()]
    assert most_alive(events, x.name) == most_alive(events, y.name) == 0
    assert most_alive(events, GANG) == 0


@pytest.mark.slow
def test_stencils_read_bands(client: Client, tmp_path: Path) -> None:
    x = stored(tmp_path, "x", A)
    z = x.map_overlap(lambda block: np.roll(block, 1, 0), depth=1, boundary="periodic")
    with limited(client, "150 kiB"):
        count = parts_of(z)
        events = recorded(client, lambda: z.to_zarr(str(tmp_path / "z")))
    np.testing.assert_array_equal(written(tmp_path / "z"), np.roll(A, 1, 0))
    parts = Parts(events, "getitem")
    assert len(parts.ends) == count
    assert most_alive(events, x.name) < x.npartitions


@pytest.mark.slow
@pytest.mark.parametrize("how", ["store", "lazy", "existing", "again"])
def test_ways_to_write(client: Client, tmp_path: Path, how: str) -> None:
    x = stored(tmp_path, "x", A)
    with limited(client, "500 kiB"):
        z = x.T @ x
        target: Any = zarr.create_array(
            tmp_path / "z", shape=z.shape, chunks=z.chunksize, dtype=z.dtype
        )
        assert parts_of(z) > 3
        if how == "store":
            da.store(z, target, lock=False)
        elif how == "lazy":
            da.to_zarr(z, target, compute=False).compute()
        elif how == "existing":
            z.to_zarr(target)
        else:  # the structure of the graph is known
            for _ in range(2):
                z.to_zarr(str(tmp_path / "z"), overwrite=True)
        nothing_left(client)
    np.testing.assert_array_equal(written(tmp_path / "z"), A.T @ A)


@pytest.mark.slow
def test_transforms_along_two_axes_go_in_passes(client: Client, tmp_path: Path) -> None:
    x = stored(tmp_path, "x", A)
    with limited(client, "600 kiB"):
        z = dgpu.fft.fft2(x)
        found = [prediction.parts for _, prediction in dgpu.explain(z).regions]
        assert len(found) == 2
        assert min(found) > 1
        z.to_zarr(str(tmp_path / "z"))
        nothing_left(client)
    np.testing.assert_allclose(written(tmp_path / "z"), np.fft.fft2(A), rtol=0, atol=1e-9)


@pytest.mark.slow
def test_requested_sources_are_in_memory_too(client: Client, tmp_path: Path) -> None:
    """Blocks that are requested beside a product wait for no part of it."""
    x, thin = stored(tmp_path, "x", A), stored(tmp_path, "thin", THIN)
    with limited(client, "150 kiB"):
        assert parts_of(x @ thin) > 3
        kept, z = client.persist([x, x @ thin])
        np.testing.assert_array_equal(z.compute(), A @ THIN)
        np.testing.assert_array_equal(kept.compute(), A)
        again = kept @ thin
        np.testing.assert_array_equal(again.compute(), A @ THIN)
        del kept, z, again
        nothing_left(client)


@pytest.mark.slow
def test_a_worker_is_lost_while_blocks_are_read(tmp_path: Path) -> None:
    x = stored(tmp_path, "x", A)
    z = dgpu.fft.fft(x, axis=0)
    with (
        start_cluster("cpu", n_workers=3) as cluster,
        cluster.get_client() as client,
        limited(client, "130 kiB"),
    ):
        slow_programs(client, 0.2)
        count, before = parts_of(z), launched_runs(client)
        future: Any = client.compute(z.to_zarr(str(tmp_path / "z"), compute=False))
        eventually(lambda: launched_runs(client) > before + 2)
        send_signal(client, sorted(cluster.scheduler.workers)[0])
        future.result(timeout=90)
        assert launched_runs(client) - before > count
        del future
        eventually(lambda: settled(cluster) and left_over(client) == 0, 60)
    np.testing.assert_allclose(written(tmp_path / "z"), np.fft.fft(A, axis=0), rtol=0, atol=1e-9)
