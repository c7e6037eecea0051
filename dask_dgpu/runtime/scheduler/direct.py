"""Runs without tasks: they begin as soon as Dask reads the graph, on blocks in memory.

::

    with tasks     stage  ->  gang  ->  program  ->  gang returns  ->  out
    without              launch  ->  program  ->  results are known

The graph is the same, so Dask can run the tasks whenever it must: after a loss, for instance. If
all input blocks of a gang are in memory, the scheduler marks its ``gang`` task as processing on a
member that knows nothing of it, and launches the run. The ``stage`` tasks never run. Workers store
the blocks of the result as the results of ``out`` tasks, and :func:`hand_over` tells Dask.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_dgpu.runtime import tasks
from dask_dgpu.runtime.program import Launch
from dask_dgpu.runtime.scheduler.blocks import Runs, place_of
from dask_dgpu.runtime.scheduler.messages import no_time, send
from graph_opt.dask_graph.emit import is_gang
from graph_opt.dask_graph.internals import List, Task, TaskRef

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState

    from dask_dgpu.runtime.scheduler.run import Run, Token

Key = Any
Messages = dict[str, list[Any]]


class Ready(NamedTuple):
    """A gang whose input blocks are in memory or will be: its key, launch, and blocks.

    ``awaited`` are the keys of blocks that do not exist yet; ``staged`` has their likely workers.
    """

    key: Key
    launch: Launch
    staged: list[list[Token]]
    awaited: frozenset[Key]


class Stored(NamedTuple):
    """A result in the memory of a worker, as Dask's messages describe it."""

    worker: str
    nbytes: int
    type: bytes
    typename: str


def ready(scheduler: Scheduler, wanted: Iterable[Key], runs: Runs) -> Iterator[Ready]:
    """Yield the gangs that a new graph needs and that can run without tasks.

    ``runs`` are those of other gangs.
    """
    seen: set[TaskState] = set()
    waiting = [ts for key in wanted if (ts := scheduler.tasks.get(key)) is not None]
    while waiting:
        ts = waiting.pop()
        if ts.state != "released" or ts in seen:
            continue
        seen.add(ts)
        found = _ready(scheduler, ts, runs) if is_gang(ts.key) else None
        if found is None:
            waiting += ts.dependencies
        else:
            yield found


def _ready(scheduler: Scheduler, gang: TaskState, runs: Runs) -> Ready | None:
    """Return a gang if its input blocks are in memory, or on their way there."""
    spec = gang.run_spec
    if not (isinstance(spec, Task) and spec.func is tasks.gang) or gang.who_wants:
        return None
    launch, *lists = spec.args
    staged: list[list[Token]] = []
    awaited: set[Key] = set()
    for each in lists:
        staged.append([])
        for ref in each.args if isinstance(each, List) else [None]:
            block = _block(scheduler, ref)
            worker = None if block is None else place_of(block, runs)
            if block is None or worker is None:
                return None
            staged[-1].append((block.key, worker))
            if block.state != "memory":
                awaited.add(block.key)
    return Ready(gang.key, launch, staged, frozenset(awaited))


def _block(scheduler: Scheduler, ref: Any) -> TaskState | None:
    """Return the block that a ``stage`` task would read; none if the task must run.

    It must in all parts of a collective but the first: they wait for the part before, and Dask may
    spill the blocks meanwhile.
    """
    stage = scheduler.tasks.get(ref.key) if isinstance(ref, TaskRef) else None
    if stage is None or stage.state != "released":
        return None
    spec = stage.run_spec
    if not (isinstance(spec, Task) and spec.func is tasks.stage):
        return None
    read, _, *turn = spec.args
    if turn:
        return None
    return scheduler.tasks.get(read.key) if isinstance(read, TaskRef) else None


def hold(scheduler: Scheduler, run: Run, stimulus_id: str) -> bool:
    """Mark the ``gang`` task of a run as processing, and keep its inputs until the launch.

    Returns false, and does nothing, if no member may run tasks.
    """
    running = {ws.address for ws in scheduler.running}
    able = [member for member in run.members if member in running]
    if not able:
        return False
    run.holder = able[run.run_id % len(able)]  # many may wait at once
    gang = scheduler.tasks[run.key]
    # its stage tasks are not in memory, and Dask would say so
    staged, gang.dependencies = gang.dependencies, set()
    try:
        scheduler._add_to_processing(gang, scheduler.workers[run.holder], stimulus_id=stimulus_id)
    finally:
        gang.dependencies = staged
    for key in run.stage_keys():
        block = scheduler.tasks[key]
        block.waiters = block.waiters or set()
        block.waiters.add(gang)
    return True


def let_go(scheduler: Scheduler, run: Run) -> None:
    """Let Dask release the inputs of a run: its members have them, or it is void."""
    release(scheduler, run, stop_waiting(scheduler, run))


def stop_waiting(scheduler: Scheduler, run: Run) -> list[Key]:
    """Let the inputs of a run wait for its ``gang`` task no more; return their keys.

    This must not be later than the release of that task. If Dask loses a block, it adds the block
    to what its waiters wait for, but only a dependency of a task can end such a wait.
    """
    let = []
    for key in run.stage_keys() if run.holder is not None else ():
        block = scheduler.tasks.get(key)
        waiters = set() if block is None else block.waiters or set()
        mine = {ts for ts in waiters if ts.key == run.key}
        if mine:
            waiters -= mine
            let.append(key)
    return let


def release(scheduler: Scheduler, run: Run, keys: Iterable[Key]) -> None:
    """Release those of the blocks that nothing needs; Dask must not be within transitions."""
    blocks = [block for key in keys if (block := scheduler.tasks.get(key)) is not None]
    unused = [ts for ts in blocks if ts.state == "memory" and not ts.waiters and not ts.who_wants]
    recommendations: dict[Key, Any] = {ts.key: "released" for ts in unused}
    scheduler.transitions(recommendations, stimulus_id=f"dgpu-launched-{run.run_id}")


def hand_over(scheduler: Scheduler, run: Run) -> None:
    """Tell Dask which results of a finished run are in memory; other ``out`` tasks run.

    If a ``gang`` task waits for the answer, and has other results too, it returns first.
    """
    gang = scheduler.tasks.get(run.key)
    if gang is None or gang.state != "processing" or gang.processing_on is None:
        return
    stimulus_id = f"dgpu-finished-{run.run_id}"
    done = [out for out in gang.dependents if _is_done(out, gang, run)]
    if run.holder is None and len(done) < len(gang.waiters or ()):
        _forget(scheduler, run.stored, stimulus_id)
        return
    change = _Change(scheduler, stimulus_id)
    unknown = Stored(gang.processing_on.address, 0, pickle.dumps(type(None)), "")
    change.finish(run.key, run.stored.pop(run.key, unknown))
    for out in done:
        stored = run.stored.pop(out.key)
        worker = scheduler.workers[stored.worker]
        scheduler._add_to_processing(out, worker, stimulus_id=stimulus_id)  # unknown to the worker
        change.finish(out.key, stored)
    change.complete()
    _forget(scheduler, run.stored, stimulus_id)


def _is_done(out: TaskState, gang: TaskState, run: Run) -> bool:
    """Return whether a worker has stored the result of an ``out`` that waits for its gang alone."""
    return out.key in run.stored and out.state == "waiting" and out.waiting_on == {gang}


def _forget(scheduler: Scheduler, results: Mapping[Key, Stored], stimulus_id: str) -> None:
    """Let workers free results that Dask has elsewhere, or does not want."""
    for key, stored in results.items():
        message = {"op": "free-keys", "keys": [key], "stimulus_id": stimulus_id}
        send(scheduler, [stored.worker], message)


class _Change:
    """Transitions of one event, whose messages are sent together."""

    def __init__(self, scheduler: Scheduler, stimulus_id: str) -> None:
        self.scheduler = scheduler
        self.stimulus_id = stimulus_id
        self.recommendations: dict[Key, Any] = {}
        self.to_clients: Messages = {}
        self.to_workers: Messages = {}

    def finish(self, key: Key, stored: Stored) -> None:
        """Move a task from processing to memory."""
        found, to_clients, to_workers = self.scheduler._transition(
            key, "memory", self.stimulus_id, **no_time(), **stored._asdict()
        )
        self.recommendations.pop(key, None)
        self.recommendations |= found
        for own, new in ((self.to_clients, to_clients), (self.to_workers, to_workers)):
            for address, messages in new.items():
                own.setdefault(address, []).extend(messages)

    def complete(self) -> None:
        """Follow the recommendations, and send all messages."""
        self.scheduler._transitions(
            self.recommendations, self.to_clients, self.to_workers, self.stimulus_id
        )
        self.scheduler.send_all(self.to_clients, self.to_workers)
        self.scheduler.stimulus_queue_slots_maybe_opened(stimulus_id=self.stimulus_id)
