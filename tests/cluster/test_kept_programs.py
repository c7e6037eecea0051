"""Workers keep programs: what they have is not sent again, whatever else happens to the cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait

import dask_dgpu as dgpu
from tests.cluster.conftest import SETTINGS
from tests.cluster.faults import slow_blocks
from tests.cluster.losses import Losses
from tests.cluster.observe import (
    PLUGIN,
    eventually,
    host,
    nothing_left,
    running,
    send_signal,
    structures,
)

pytestmark = pytest.mark.cluster

N, CHUNK = 60, 17


def program(x: da.Array) -> da.Array:
    return (x @ x.T) / x.sum() + x


def expected(a: Any) -> Any:
    return (a @ a.T) / a.sum() + a


def data(seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).random((N, N))


def watch_launches(dask_worker: Any) -> None:
    """Count the launches of a worker, and the programs that came with them or were asked for."""
    plugin = dask_worker.plugins[PLUGIN]
    plugin.counted = {"launches": 0, "programs": 0, "asked": 0}
    launch, program = plugin._launch, plugin._program

    def launching(**fields: Any) -> None:
        plugin.counted["launches"] += 1
        plugin.counted["programs"] += "text" in fields
        launch(**fields)

    def received(**fields: Any) -> None:
        plugin.counted["asked"] += 1
        program(**fields)

    dask_worker.stream_handlers.update({"dgpu-launch": launching, "dgpu-program": received})


def watch_no_more(dask_worker: Any) -> None:
    plugin = dask_worker.plugins[PLUGIN]
    handlers = {"dgpu-launch": plugin._launch, "dgpu-program": plugin._program}
    dask_worker.stream_handlers.update(handlers)


def counted(client: Client) -> dict[str, set[int]]:
    """Return for each count those of all workers."""
    found = client.run(lambda dask_worker: dask_worker.plugins[PLUGIN].counted).values()
    return {name: {each[name] for each in found} for name in ("launches", "programs", "asked")}


def forget(dask_worker: Any) -> None:
    dask_worker.plugins[PLUGIN].programs.shrink(0)


def kept(dask_worker: Any) -> int:
    return len(dask_worker.plugins[PLUGIN].programs)


def check(in_memory: Callable[..., da.Array], seeds: Any) -> None:
    """Compute the program of new data, with each seed."""
    for seed in seeds:
        z = program(in_memory(data(seed), CHUNK)).persist()
        wait(z)
        np.testing.assert_allclose(host(z.compute()), expected(data(seed)), rtol=1e-12)


def test_what_workers_have_is_not_sent_again(client, cluster, in_memory):
    check(in_memory, range(2))
    client.run(watch_launches)
    check(in_memory, range(2, 5))
    assert counted(client) == {"launches": {3}, "programs": {0}, "asked": {0}}
    client.run(forget)  # and the scheduler does not know
    check(in_memory, range(5, 7))
    assert counted(client) == {"launches": {5}, "programs": {0}, "asked": {1}}
    with Client(cluster) as second, dgpu.enable(second, **SETTINGS):
        check(in_memory, range(7, 9))
    assert counted(client) == {"launches": {7}, "programs": {0}, "asked": {1}}
    client.run(watch_no_more)


def test_an_array_that_is_computed_again_has_the_same_tasks(client, in_memory, caplog):
    """Dask keeps the tasks of a result for a moment, and warns if the next ones differ."""
    values = data(1)
    x = in_memory(values, CHUNK)
    client.run(watch_launches)
    for _ in range(5):
        wait((x @ x).persist())
        np.testing.assert_allclose(host((x @ x).compute()), values @ values, rtol=1e-12)
    z = (x @ x).persist()
    wait(z)
    before = counted(client)["launches"]
    np.testing.assert_allclose(host((x @ x).compute()), values @ values, rtol=1e-12)
    assert counted(client)["launches"] == before  # its blocks are in memory
    client.run(watch_no_more)
    assert "different `run_spec`" not in caplog.text


@pytest.mark.slow
def test_a_new_number_in_each_step_is_a_known_program(client, in_memory):
    """Gradient descent, whose step size each step computes anew."""
    a, values = data(1), data(2)
    x, w = in_memory(a, CHUNK), in_memory(values, CHUNK)
    counts = []
    for at in range(20):
        step = 1e-4 / (1 + np.sqrt(at + 0.5))
        w = (w - step * (x.T @ (x @ w))).persist()
        wait(w)
        values = values - step * (a.T @ (a @ values))
        if at == 1:  # the blocks lie as gangs leave them
            client.run(watch_launches)
        counts.append(structures(client))
    np.testing.assert_allclose(host(w.compute()), values, rtol=1e-10)
    assert counted(client) == {"launches": {18}, "programs": {0}, "asked": {0}}
    assert counts[1] == counts[-1]
    client.run(watch_no_more)


def test_with_a_limit_of_nothing_each_launch_has_the_program(client, in_memory):
    with dgpu.enable(client, gang_kept_programs=0, **SETTINGS):
        client.run(watch_launches)
        check(in_memory, range(2))
        assert counted(client) == {"launches": {2}, "programs": {2}, "asked": {0}}
        eventually(lambda: set(client.run(kept).values()) == {0})
    client.run(watch_no_more)


def short_of_memory(dask_worker: Any) -> None:
    """Make a worker believe that it must spill, but not pause."""
    manager, monitor = dask_worker.memory_manager, dask_worker.monitor
    fraction = (manager.memory_spill_fraction + manager.memory_pause_fraction) / 2
    monitor.get_process_memory = lambda: int(manager.memory_limit * fraction)


def short_no_more(dask_worker: Any) -> None:
    del dask_worker.monitor.get_process_memory


def held(dask_worker: Any) -> tuple[int, int, int]:
    plugin = dask_worker.plugins[PLUGIN]
    workspaces = len(plugin.member.device._kept)
    return len(plugin.programs), workspaces, len(plugin.member._comms)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu"], indirect=True)
def test_under_memory_pressure_nothing_is_kept(client, cluster, in_memory):
    """Programs, workspaces, and the communicators of other gangs; then all goes on."""
    check(in_memory, range(2))
    workers = sorted(cluster.scheduler.workers)
    with dask.annotate(workers=workers[:2], allow_other_workers=False):
        x = da.from_array(data(1), chunks=CHUNK)
        wait((x @ x.T).persist())
    check(in_memory, range(2))
    before = client.run(held)
    assert all(programs and workspaces for programs, workspaces, _ in before.values())
    assert max(comms for *_, comms in before.values()) >= 2
    client.run(short_of_memory, workers=workers[:1])
    eventually(lambda: client.run(held)[workers[0]] == (0, 0, 1))
    found = client.run(held)
    assert [found[each][0] for each in workers[1:]] == [before[each][0] for each in workers[1:]]
    client.run(short_no_more, workers=workers[:1])
    client.run(watch_launches)
    check(in_memory, range(3))
    expected = dict.fromkeys(workers, 0) | {workers[0]: 1}
    sent = client.run(lambda dask_worker: dask_worker.plugins[PLUGIN].counted["programs"])
    assert sent == expected
    assert counted(client)["asked"] == {0}
    client.run(watch_no_more)
    nothing_left(client)


@pytest.mark.slow
@pytest.mark.timeout(300)
class TestLosses(Losses):
    def test_a_worker_is_killed_between_launches(self, client, cluster, in_memory):
        check(in_memory, range(2))
        workers = set(cluster.scheduler.workers)
        send_signal(client, sorted(workers)[1])
        eventually(lambda: len(workers & set(cluster.scheduler.workers)) == len(workers) - 1)
        check(in_memory, range(2, 4))
        eventually(lambda: len(cluster.scheduler.workers) == len(workers), 60)
        client.run(watch_launches)
        check(in_memory, range(4, 7))
        found = counted(client)
        assert found["launches"] == {3}
        assert found["programs"] <= {0, 1}  # only what is new for a worker
        assert found["asked"] == {0}
        nothing_left(client)

    def test_a_worker_is_killed_while_a_kept_program_runs(self, client, cluster, in_memory):
        check(in_memory, range(2))
        slow_blocks(client, 0.05)
        x = in_memory(data(5), CHUNK)
        z = client.compute(program(x))
        value = self.result_after_loss(client, z)
        np.testing.assert_allclose(value, expected(data(5)), rtol=1e-12)

    @pytest.mark.parametrize("device", ["cpu"], indirect=True)
    def test_a_worker_joins(self, client, cluster, in_memory):
        check(in_memory, range(2))
        cluster.scale(5)
        eventually(lambda: len(cluster.scheduler.workers) == 5, 60)
        check(in_memory, range(2, 5))
        cluster.scale(3)
        eventually(lambda: len(cluster.scheduler.workers) == 3, 60)
        check(in_memory, range(5, 7))
        nothing_left(client)

    def test_a_rank_that_waits_for_its_program_is_given_up(self, client, cluster, in_memory):
        """The scheduler does not hear its question; then another worker is lost."""
        check(in_memory, range(2))
        client.run_on_scheduler(deafen)
        victim, waiting = sorted(cluster.scheduler.workers)[:2]
        client.run(forget, workers=[waiting])
        x = in_memory(data(7), CHUNK)
        z = client.compute(program(x))
        eventually(lambda: running(client))
        client.run_on_scheduler(hear)
        send_signal(client, victim)
        np.testing.assert_allclose(host(z.result(timeout=60)), expected(data(7)), rtol=1e-12)

    def test_two_clients_in_turn(self, client, cluster, in_memory):
        client.run(forget)
        client.run(watch_launches)
        with Client(cluster, set_as_default=False) as second, dgpu.enable(second, **SETTINGS):
            for seed in range(6):
                user = (client, second)[seed % 2]
                with user.as_current():
                    x = user.persist(da.from_array(data(seed), chunks=CHUNK))
                    wait(x)
                    value = user.compute(program(x)).result(timeout=60)
                np.testing.assert_allclose(host(value), expected(data(seed)), rtol=1e-12)
        assert counted(client)["programs"] == {1}


async def deafen(dask_scheduler: Any) -> None:
    dask_scheduler.stream_handlers["dgpu-lacks"] = lambda **question: None


async def hear(dask_scheduler: Any) -> None:
    plugin = dask_scheduler.plugins[PLUGIN]
    dask_scheduler.stream_handlers["dgpu-lacks"] = plugin.launches.lacks
