"""Dask's tasks on the scheduler, as gangs see them: places, transitions, and messages.

``tests/runtime/scheduler/test_states.py`` compares what is private to Dask with its version.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterable, Mapping
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from dask_dgpu.errors import GangError
from dask_dgpu.runtime import tasks
from dask_dgpu.runtime.program import Launch
from graph_opt.dask_graph.internals import DataNode, Task
from graph_opt.model.names import serves

if TYPE_CHECKING:
    from distributed.protocol.serialize import Serialized
    from distributed.scheduler import Scheduler, TaskState

    from dask_dgpu.runtime.scheduler.run import Run

Key = Any
Runs = Mapping[Any, "Run"]
Messages = dict[str, list[Any]]

TOPIC = "dgpu-fallback"
"""Topic of the scheduler's events: the names of the arrays, and the reason."""

RUNS = "dgpu"
"""Topic of the scheduler's events: one for each finished run of a gang. Also the thread of steps
and of results without tasks, in what Dask shows of threads."""

DASK_WARNINGS = "warn"
"""Topic of the events that Dask's clients show as warnings."""

MEASUREMENT = "dgpu-measure"
"""Prefix of the keys of tasks that measure a cluster."""

MOST_NAMES = 20
"""Most names of arrays in one event."""


class Stored(NamedTuple):
    """A result in the memory of a worker, as Dask's messages describe it."""

    worker: str
    nbytes: int
    type: bytes
    typename: str


def announce(scheduler: Scheduler, names: Collection[str], reason: str, message: str) -> None:
    """Log an event for ``explain``, and make all clients warn."""
    warning = {"message": pickle.dumps(message), "category": pickle.dumps(UserWarning)}
    scheduler.log_event(TOPIC, {"names": list(names)[:MOST_NAMES], "reason": reason})
    scheduler.log_event(DASK_WARNINGS, warning)


def send(scheduler: Scheduler, workers: Iterable[str], message: dict[str, Any]) -> None:
    """Send a message to workers, except the lost ones."""
    for worker in workers:
        if worker in scheduler.workers:
            scheduler.worker_send(worker, message)


def at_once(stream: Any) -> None:
    """Send the next message of one of Dask's streams at once; its event loop must call this.

    Dask waits up to 10 ms after a message, such as that of a freed block, for others to send with
    the next.
    """
    if stream is not None:  # it has ended
        stream.next_deadline = None


def known_as(scheduler: Scheduler, worker: str) -> str:
    """Return the scheduler's address of a worker, which may call itself by a host's name."""
    return worker if worker in scheduler.workers else str(scheduler.coerce_address(worker))


def runs_on(scheduler: Scheduler, key: Key, worker: str) -> bool:
    """Whether a task is processed on a worker."""
    ts = scheduler.tasks.get(key)
    return ts is not None and getattr(ts.processing_on, "address", None) == worker


def prefer(scheduler: Scheduler, ts: TaskState, worker: str | None, *, loose: bool) -> None:
    """Restrict a task to a worker, a ``loose`` one for others too; ``None`` allows all workers."""
    scheduler.set_restrictions({ts.key: None if worker is None else {worker}})
    ts.loose_restrictions = loose


# tasks of gangs, and places of blocks


def launch_of(gang: TaskState) -> Launch | None:
    """Return the launch of a ``gang`` task, which an array in a Delayed may hide."""
    spec = gang.run_spec
    launch = spec.args[0] if isinstance(spec, Task) and spec.args else None
    return launch if isinstance(launch, Launch) else None


def awaited(ts: TaskState) -> set[TaskState]:
    """Return a task, all for which it waits, and all for which these do."""
    tasks: set[TaskState] = set()
    left = [ts]
    while left:
        last = left.pop()
        if last not in tasks:
            tasks.add(last)
            left += last.waiting_on or ()
    return tasks


def is_out(ts: TaskState) -> bool:
    """Return whether a task does no more than to return a block of a gang."""
    return isinstance(ts.run_spec, Task) and ts.run_spec.func is tasks.out


def block_of(out: TaskState) -> Key:
    """Return the block of an ``out``: an argument of the task, which may have another name."""
    return _within(out).args[1]


def block_read(stage: TaskState) -> Key | DataNode:
    """Return the key of the block that a ``stage`` task reads, or the block itself if it has it.

    In a Delayed the key is another than in the task within.
    """
    for dependency in stage.dependencies:
        if not serves(dependency.key):
            return dependency.key
    return DataNode(None, _within(stage).args[0])


def _within(ts: TaskState) -> Task:
    """Return the task of a gang, which that of an array in a Delayed holds."""
    task = cast(Task, ts.run_spec)
    while len(task.args) == 1:
        (task,) = task.args
    return task


def worker_with(block: TaskState) -> str | None:
    """Return a worker with a block in memory, the same whenever it is asked for."""
    return min((ws.address for ws in list(block.who_has or ())), default=None)


def place_of(block: TaskState, runs: Runs) -> str | None:
    """Return the worker that has a block, or will have it soon; none if that is unknown.

    A block will exist soon if its task is on a worker, or if a run that needs no task computes it.
    Blocks that wait for other tasks may need the very place of a gang that waits for them. Other
    threads than that of the event loop may call this.
    """
    if block.state == "memory":
        return worker_with(block)
    if block.state == "processing" and block.processing_on is not None:
        return block.processing_on.address
    gangs = list(block.waiting_on or ())
    if block.state != "waiting" or len(gangs) != 1 or not is_out(block):
        return None
    run = runs.get(gangs[0].key)
    if run is None or run.holder is None or run.outcome.done():
        return None
    return run.worker_of(block_of(block))


# ends of tasks


def released(scheduler: Scheduler, keys: Iterable[Key], stimulus_id: str) -> None:
    """Release tasks; those that are still wanted run again."""
    recommendations: dict[Key, Any] = dict.fromkeys(keys, "released")
    scheduler.transitions(recommendations, stimulus_id=stimulus_id)


def run_again(scheduler: Scheduler, gang: TaskState, stimulus_id: str) -> None:
    """Run a ``gang`` task again from its ``stage`` tasks, unless its results have failed."""
    if any(out.state == "erred" for out in gang.dependents):
        return
    keys = [out.key for out in gang.dependents if out.state not in ("memory", "released")]
    keys += [gang.key, *(stage.key for stage in gang.dependencies)]
    released(scheduler, keys, stimulus_id)
    scheduler.stimulus_queue_slots_maybe_opened(stimulus_id=stimulus_id)


def fail(scheduler: Scheduler, ts: TaskState, error: GangError, raised: bytes, event: str) -> None:
    """Let a task that is processed fail, as if its worker had reported the ``raised`` error."""
    if ts.processing_on is not None:
        scheduler.handle_task_erred(
            ts.key,
            event,
            worker=ts.processing_on.address,
            run_id=ts.run_id,
            exception=raised,
            exception_text=repr(error),
            **_no_time(),
        )


def fail_waiting(scheduler: Scheduler, ts: TaskState, error: GangError, stimulus_id: str) -> None:
    """Let a task fail that waits for others; it needs a task to blame to become erred."""
    ts.exception = cast("Serialized", pickle.dumps(error))
    ts.exception_text = repr(error)
    ts.exception_blame = ts
    scheduler.transitions({ts.key: "erred"}, stimulus_id=stimulus_id)


def wait_again(scheduler: Scheduler, key: Key, stimulus_id: str) -> None:
    """Let a task that is processed wait for its dependencies; Dask is within transitions."""
    scheduler._transition(key, "waiting", stimulus_id)


# tasks that no worker runs


def hold(
    scheduler: Scheduler, key: Key, worker: str, inputs: Iterable[Key], stimulus_id: str
) -> None:
    """Mark a released task as processed by a worker, which is not told, and keep its ``inputs``."""
    task = scheduler.tasks[key]
    # its dependencies are not in memory, and Dask would say so
    before, task.dependencies = task.dependencies, set()
    try:
        scheduler._add_to_processing(task, scheduler.workers[worker], stimulus_id=stimulus_id)
    finally:
        task.dependencies = before
    for each in inputs:
        block = scheduler.tasks[each]
        block.waiters = block.waiters or set()
        block.waiters.add(task)


def stop_waiting(scheduler: Scheduler, key: Key, inputs: Iterable[Key]) -> list[Key]:
    """Let inputs wait for a held task no more; return their keys.

    This must not be later than the release of that task. If Dask loses a block, it adds the block
    to what its waiters wait for, but only a dependency of a task can end such a wait.
    """
    let = []
    for each in inputs:
        block = scheduler.tasks.get(each)
        waiters = set() if block is None else block.waiters or set()
        mine = {ts for ts in waiters if ts.key == key}
        if mine:
            waiters -= mine
            let.append(each)
    return let


def release_unneeded(scheduler: Scheduler, keys: Iterable[Key], stimulus_id: str) -> None:
    """Release those of the blocks that nothing needs; Dask must not be within transitions."""
    blocks = [block for key in keys if (block := scheduler.tasks.get(key)) is not None]
    unused = [ts for ts in blocks if ts.state == "memory" and not ts.waiters and not ts.who_wants]
    released(scheduler, [ts.key for ts in unused], stimulus_id)


def forget(scheduler: Scheduler, results: Mapping[Key, Stored], stimulus_id: str) -> None:
    """Let workers free results that Dask has elsewhere, or does not want."""
    for key, stored in results.items():
        message = {"op": "free-keys", "keys": [key], "stimulus_id": stimulus_id}
        send(scheduler, [stored.worker], message)


class Finish:
    """Ends of tasks in one event, whose messages are sent together."""

    def __init__(self, scheduler: Scheduler, stimulus_id: str) -> None:
        self.scheduler = scheduler
        self.stimulus_id = stimulus_id
        self.recommendations: dict[Key, Any] = {}
        self.to_clients: Messages = {}
        self.to_workers: Messages = {}

    def add(self, task: TaskState, stored: Stored) -> None:
        """Move a task to memory; one that waits is processed first, unknown to its worker."""
        if task.state == "waiting":
            worker = self.scheduler.workers[stored.worker]
            self.scheduler._add_to_processing(task, worker, stimulus_id=self.stimulus_id)
        recommendations, to_clients, to_workers = self.scheduler._transition(
            task.key, "memory", self.stimulus_id, **_no_time(), **stored._asdict()
        )
        self.recommendations.pop(task.key, None)
        self.recommendations |= recommendations
        for own, new in ((self.to_clients, to_clients), (self.to_workers, to_workers)):
            for address, messages in new.items():
                own.setdefault(address, []).extend(messages)

    def complete(self) -> None:
        """Follow the recommendations, and send all messages."""
        self.scheduler._transitions(
            self.recommendations, self.to_clients, self.to_workers, self.stimulus_id
        )
        for client in self.to_clients:
            at_once(self.scheduler.client_comms.get(client))
        self.scheduler.send_all(self.to_clients, self.to_workers)
        self.scheduler.stimulus_queue_slots_maybe_opened(stimulus_id=self.stimulus_id)


def _no_time() -> dict[str, Any]:
    """Return the times of a task that Dask has not run: its dashboard expects some.

    Those of the steps of a gang are shown separately.
    """
    now = time()
    return {"startstops": [{"action": "transfer", "start": now, "stop": now}], "thread": RUNS}
