"""Looking into a cluster: what gangs did, what they left, who is there."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.base import persist
from distributed import Client, Event, futures_of, get_client, wait
from distributed.diagnostics.plugin import SchedulerPlugin

from dask_dgpu.runtime import plans
from tests.support.calls import Counting

PLUGIN = "dask-dgpu"

# What a worker runs first: torch reports every lost peer at length on its own, and a search for
# garbage at the end of a process with all imports takes 0.75 s of CPU time.
quiet_workers = "; ".join(
    [
        "import atexit, gc, os",
        "os.environ['TORCH_CPP_LOG_LEVEL'] = 'ERROR'",
        "atexit.register(gc.freeze)",
    ]
)


def eventually(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Return the first true value of ``condition()``."""
    late = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < late, "it did not come about in time"
        time.sleep(0.01)
    return value


def host(array: Any) -> np.ndarray[Any, Any]:
    return np.asarray(array.get() if hasattr(array, "get") else array)


def reports(client: Client) -> dict[str, Any]:
    def report(dask_worker: Any) -> Any:
        plugin = dask_worker.plugins[PLUGIN]
        member = plugin.member
        return {
            "running": plugin._report(),
            "staged": len(plugin.staged),
            "results": sum(map(len, plugin.results.copy().values())),
            "epochs": sorted(member._comms),
            "stores": sorted(member._stores),
            "connected": member.connected,
        }

    return client.run(report)


def structures(client: Client) -> int:
    """Number of structures that the scheduler keeps."""

    def count(dask_scheduler: Any) -> int:
        return len(dask_scheduler.plugins[PLUGIN].structures)

    found: int = client.run_on_scheduler(count)
    return found


def forget_structures(client: Client) -> None:
    """Let the scheduler optimize each graph anew, as if the cluster were new."""

    def forget(dask_scheduler: Any) -> None:
        dask_scheduler.plugins[PLUGIN].structures.clear()

    client.run_on_scheduler(forget)


def left_over(client: Client) -> int:
    """Number of blocks and jobs that workers keep for gangs; -1 if one does not answer.

    The scheduler may not know yet that a worker was killed.
    """
    try:
        found = reports(client).values()
    except OSError:
        return -1
    return sum(r["staged"] + r["results"] + len(r["running"]) for r in found)


def nothing_left(client: Client, *held: da.Array) -> None:
    """Check that gangs have left nothing anywhere, and only the results of these arrays."""
    eventually(lambda: not any(client.run_on_scheduler(_scheduler_tables).values()))
    eventually(lambda: left_over(client) == 0)
    eventually(lambda: kept(client) == sum(array.npartitions for array in held))
    for found in client.run(_worker_tables).values():
        assert not any(found.values()), found


def _scheduler_tables(dask_scheduler: Any) -> dict[str, int]:
    plugin = dask_scheduler.plugins[PLUGIN]
    return {
        "runs": len(plugin.runs),
        "waiting": len(plugin.launches.waiting),
        "staging": len(plugin.launches.staging.workers),
        "losses": len(plugin.endings.past),
        "placed": len(plugin.new_arrays._placed),
        "waiters": sum(_waits_in_vain(dask_scheduler, ts) for ts in dask_scheduler.tasks.values()),
    }


def _waits_in_vain(scheduler: Any, block: Any) -> bool:
    """Whether a block is kept for a task that is gone."""
    return any(scheduler.tasks.get(ts.key) is not ts for ts in block.waiters or ())


def _worker_tables(dask_worker: Any) -> dict[str, int]:
    plugin = dask_worker.plugins[PLUGIN]
    names = ("staged", "unwanted", "results", "stored", "jobs")
    return {name: len(getattr(plugin, name)) for name in names}


def launched_runs(client: Client) -> int:
    """Number of runs ever opened."""

    def runs(dask_scheduler: Any) -> int:
        ids = dask_scheduler.plugins[PLUGIN].run_ids
        return int(repr(ids)[len("count(") : -1])

    return client.run_on_scheduler(runs)


def running(client: Client) -> int:
    """Number of runs whose programs are under way."""

    def runs(dask_scheduler: Any) -> int:
        known = dask_scheduler.plugins[PLUGIN].runs.values()
        return sum(run.epoch is not None and not run.outcome.done() for run in known)

    return client.run_on_scheduler(runs)


class _Submitted(SchedulerPlugin):
    """Notes the tasks that clients submit."""

    name = "submitted"

    def __init__(self) -> None:
        self.keys: set[Any] = set()

    def update_graph(self, scheduler: Any, *, tasks: list[Any], **kwargs: Any) -> None:
        self.keys.update(tasks)


class Counted(NamedTuple):
    """A persisted result, and what was submitted for it."""

    result: da.Array
    tasks: int
    blocks: int  # of what was given and of the result
    ranks: int


def counted(client: Client, make: Callable[..., da.Array], *given: da.Array) -> Counted:
    """Persist the given arrays, then a result of them; count the tasks of the result."""
    given = persist(*given)
    wait(given)
    client.register_plugin(_Submitted())
    result = make(*given).persist()
    wait(result)

    def keys(dask_scheduler: Any) -> set[Any]:
        return dask_scheduler.plugins[_Submitted.name].keys

    submitted = client.run_on_scheduler(keys)
    client.unregister_scheduler_plugin(_Submitted.name)
    futures = [future for array in given for future in futures_of(array)]
    tasks = len(submitted - {future.key for future in futures})
    ranks = len(client.scheduler_info(n_workers=-1)["workers"])
    return Counted(result, tasks, len(futures) + len(futures_of(result)), ranks)


def computed(client: Client, y: da.Array) -> tuple[Any, int]:
    """Return a result on the host, and how many gangs it took; these leave nothing behind."""
    before = launched_runs(client)
    result = client.compute(y).result(timeout=100)
    assert (result.dtype, result.shape) == (y.dtype, y.shape)
    assert y.ndim == 0 or type(result) is type(y._meta)
    eventually(lambda: left_over(client) == 0)
    return host(result), launched_runs(client) - before


def check(client: Client, y: da.Array, wanted: Any) -> int:
    """Compare a result with what it must be; return how many gangs it took."""
    result, gangs = computed(client, y)
    np.testing.assert_allclose(result, wanted, rtol=1e-10, atol=1e-10)
    return gangs


def transports(client: Client) -> set[str]:
    """Return the kinds of communicators of all workers."""

    def names(dask_worker: Any) -> set[str]:
        comms = dask_worker.plugins[PLUGIN].member._comms.values()
        return {type(comm).__name__ for comm in comms}

    return set().union(*client.run(names).values())


def settled(cluster: Any) -> bool:
    """Whether every worker, and the nanny behind it, is up and running."""
    nannies = list(cluster.workers.values())
    return len(cluster.scheduler.workers) == len(nannies) and all(
        nanny.status.name == "running"
        and nanny.process is not None
        and nanny.process.status.name == "running"
        and nanny.worker_address in cluster.scheduler.workers
        for nanny in nannies
    )


def starting(cluster: Any) -> bool:
    """Whether a nanny starts a worker, in place of one that was lost."""
    return any(
        nanny.status.name == "running" and nanny.worker_address not in cluster.scheduler.workers
        for nanny in cluster.workers.values()
    )


def held_back(block: Any, name: str) -> Any:
    """Return a block on a worker once an event is set."""
    Event(name, client=get_client()).wait(timeout=60)
    return block


def has_both_times(found: Any) -> bool:
    """Whether each step of an explained region has hidden and exposed seconds."""
    (region,) = found.to_dict()["regions"]
    assert len(region["hidden"]) == len(region["exposed"]) == len(region["measured"]) > 0
    assert min(region["hidden"]) >= 0
    # a rechunk may move nothing
    return bool(min(region["exposed"]) >= 0 < max(region["exposed"]))


def send_signal(client: Client, worker: str, number: signal.Signals = signal.SIGKILL) -> None:
    (pid,) = client.run(os.getpid, workers=[worker]).values()
    os.kill(pid, number)


def kept(client: Client) -> int:
    """Number of results in the memory of workers."""
    return sum(client.run(lambda dask_worker: len(dask_worker.data)).values())


def count_tasks(dask_worker: Any) -> None:
    handlers = dask_worker.stream_handlers
    handlers["compute-task"] = Counting(handlers["compute-task"])


def counted_tasks(dask_worker: Any) -> int:
    return int(dask_worker.stream_handlers["compute-task"].calls)


def count_tasks_no_more(dask_worker: Any) -> None:
    handle = dask_worker.stream_handlers["compute-task"].__wrapped__
    dask_worker.stream_handlers["compute-task"] = handle


def plans_made() -> int:
    """Number of programs that this process has planned."""
    return plans._settled.cache_info().misses


def compilations() -> tuple[Counter[str], Counter[str]]:
    """Return which kernels this process compiled, and which it read from disk."""
    from dask_dgpu.kernels.stencil import host as stencil
    from dask_dgpu.kernels.sums import host as sums

    missed, hit = Counter[str](), Counter[str]()
    for function in (stencil.sweep_bands, sums.add_compensated):
        name, stats = function.py_func.__name__, function.stats
        missed += Counter({f"{name}{types}": n for types, n in stats.cache_misses.items()})
        hit += Counter({f"{name}{types}": n for types, n in stats.cache_hits.items()})
    return missed, hit
