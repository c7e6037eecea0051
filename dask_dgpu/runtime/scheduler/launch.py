"""The launch of a run: members, plans, epoch, and a message to each member; places of blocks.

A run begins in one of two ways. The ``gang`` task calls, once its ``stage`` tasks have delivered
the blocks. Or, if all blocks are in memory when Dask reads the graph, or will be soon, the run
begins without tasks::

    with tasks     stage  ->  gang  ->  program  ->  gang returns  ->  out
    without              launch  ->  program  ->  results are known

The graph is the same, so Dask can run the tasks whenever it must: after a loss, for instance. If
all input blocks of a gang are in memory, the scheduler marks its ``gang`` task as processing on a
member that knows nothing of it, and launches the run. The ``stage`` tasks never run. Workers store
the blocks of the result as the results of ``out`` tasks, and :func:`hand_over` tells Dask.
"""

from __future__ import annotations

import asyncio
import pickle
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from distributed.utils import log_errors
from zict import LRU

from dask_dgpu.errors import GangError
from dask_dgpu.runtime import tasks
from dask_dgpu.runtime.program import Launch
from dask_dgpu.runtime.scheduler.records import recorders
from dask_dgpu.runtime.scheduler.run import Run, watch
from dask_dgpu.runtime.scheduler.states import (
    Finish,
    Runs,
    Stored,
    at_once,
    block_of,
    forget,
    hold,
    is_out,
    place_of,
    prefer,
    release_unneeded,
    send,
    stop_waiting,
    wait_again,
)
from graph_opt.dask_graph.internals import List, Task, TaskRef
from graph_opt.model.layout import dealt
from graph_opt.model.names import is_gang

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState

    from dask_dgpu.runtime.scheduler.losses import Endings
    from dask_dgpu.runtime.scheduler.run import Planned, Token

Key = Any

KEPT_PROGRAMS = 32
"""Number of planned programs that the scheduler keeps."""

MOST_SENT = 4096
"""Number of digests of programs that the scheduler remembers of each worker."""


class Launches:
    """Launches runs."""

    def __init__(self, scheduler: Scheduler, endings: Endings) -> None:
        self.scheduler = scheduler
        self.runs, self.epochs, self.endings = endings.runs, endings.epochs, endings
        self.staging = Staging(scheduler)
        self.waiting: dict[Key, list[Run]] = {}  # for blocks, without tasks
        self.planned: LRU[Any, Planned] = LRU(KEPT_PROGRAMS, {})
        self.sent: dict[str, LRU[bytes, None]] = {}  # to each worker

    def begin(self, run: Run) -> None:
        """Choose the members of a new run, and launch it in the background."""
        self.runs[run.key] = run
        failure = self.endings.too_many(run)
        if failure is not None:
            run.end("failed", error=pickle.dumps(failure))
            return
        run.choose_members(self.scheduler)
        lost = [member for member in run.members if member not in self.scheduler.workers]
        if lost:
            self.endings.lost(run, lost[0], "stage")
            self.endings.start_over(run.key, f"dgpu-stale-{run.run_id}")
            return
        run.task = asyncio.ensure_future(self._launch(run))

    def begin_at_once(self, run: Run, stimulus_id: str) -> None:
        """Begin a run without its tasks, when its ``missing`` blocks are in memory, too.

        If it cannot, its tasks run.
        """
        run.choose_members(self.scheduler)
        running = {ws.address for ws in self.scheduler.running}
        able = [member for member in run.members if member in running]
        if not able:
            return
        run.holder = able[run.run_id % len(able)]  # many may wait at once
        hold(self.scheduler, run.key, run.holder, run.stage_keys(), stimulus_id)
        self.runs[run.key] = run
        for key in run.missing:
            self.waiting.setdefault(key, []).append(run)
        if not run.missing:
            run.task = asyncio.ensure_future(self._launch(run))

    def arrived(self, key: Key) -> None:
        """Begin the runs that waited for this block only, once Dask has noted it."""
        for run in self.waiting.pop(key):
            run.missing.discard(key)
            if not run.missing:
                asyncio.get_running_loop().call_soon(self._resume, run)

    def missed(self, key: Key, stimulus_id: str) -> None:
        """Let the tasks of runs run that waited for a block: it has to be made again, or failed.

        So must the runs that wait for their results. Dask is within transitions, and may be about
        to let the ``gang`` tasks fail. It expects that a task with failed dependencies waits: if
        one was processed, Dask would run it again.
        """
        for run in self._in_vain(key):
            asyncio.get_running_loop().call_soon(self._leave_to_tasks, run)
            wait_again(self.scheduler, run.key, stimulus_id)

    def _in_vain(self, key: Key) -> list[Run]:
        """Return the runs that wait for a block, or for the results of such a run.

        They wait no more.
        """
        runs = list(self.waiting.get(key, ()))
        for run in runs:  # which grows
            self._wait_no_more(run)
            for out in self._outs(run):
                runs += [each for each in self.waiting.get(out.key, ()) if each not in runs]
        return runs

    def _wait_no_more(self, run: Run) -> None:
        for key in run.missing:
            self.waiting[key].remove(run)
            if not self.waiting[key]:
                del self.waiting[key]
        run.missing.clear()

    def _outs(self, run: Run) -> Collection[TaskState]:
        gang = self.scheduler.tasks.get(run.key)
        return gang.dependents if gang is not None else ()

    def _resume(self, waited: Run) -> None:
        """Begin a run whose blocks are all in memory by now."""
        if self.runs.get(waited.key) is not waited or waited.outcome.done():
            return
        run = waited.on_blocks(self.scheduler)
        if run is None:
            self._leave_to_tasks(waited)
            return
        self.runs[run.key] = run
        run.task = asyncio.ensure_future(self._launch(run))

    def remove_worker(self, worker: str) -> None:
        """Forget what a lost worker had."""
        self.staging.remove_worker(worker)
        self.sent.pop(worker, None)

    def relieve(self, worker: str) -> None:
        """Let a worker that is short of memory keep less: it has freed its programs."""
        self.epochs.relieve(worker)
        self.sent.pop(worker, None)

    def ended(self, key: Key, finish: str, stimulus_id: str) -> None:
        """End the run of a ``gang`` task that is released or has failed, and free its results.

        A gang that fails has no past: a client may retry it.
        """
        run = self.runs.pop(key, None)
        if run is not None and run.holder is not None:
            self._withdraw(run, stimulus_id)
        if run is not None and not run.outcome.done():
            self.endings.cancel(run)
        elif run is not None and run.finished:
            send(self.scheduler, run.members, run.message("dgpu-free"))
        taken = run is not None and run.finished and not run.starts_over
        if taken or finish in ("forgotten", "erred"):
            self.endings.past.pop(key, None)

    def _withdraw(self, run: Run, stimulus_id: str) -> None:
        """Let a run without tasks wait no more."""
        self._wait_no_more(run)
        for out in self._outs(run):
            self.missed(out.key, stimulus_id)
        unneeded = stop_waiting(self.scheduler, run.key, run.stage_keys())
        loop = asyncio.get_running_loop()
        loop.call_soon(release_unneeded, self.scheduler, unneeded, _launched(run))

    def _leave_to_tasks(self, run: Run) -> None:
        """Run the tasks of a run that waits in vain, if Dask has not done so, nor ended it."""
        current = self.runs.get(run.key)
        gang = self.scheduler.tasks.get(run.key)
        released = gang is not None and gang.state == "waiting" and current is None
        if released or (current is run and not run.outcome.done()):
            self.endings.start_over(run.key, f"dgpu-missed-{run.run_id}")

    @log_errors
    async def _launch(self, run: Run) -> None:
        try:
            try:
                run.less = run.key in self.endings.past and self.endings.past[run.key].short
                await run.plan(self.planned)
                if run.outcome.done():
                    return
                limits = run.program.limits
                terms = run.program.transport, limits.timeout, limits.ports
                run.epoch = self.epochs.get(run.members, *terms)
                self._send(run)
            finally:
                if run.holder is not None:  # members have the inputs, or the run is void
                    unneeded = stop_waiting(self.scheduler, run.key, run.stage_keys())
                    release_unneeded(self.scheduler, unneeded, _launched(run))
            await watch(self.scheduler, run, self.runs, self.endings.fail)
        except Exception as error:
            failure = GangError(f"{type(error).__name__}: {error}", phase="launch")
            may_be_lost = isinstance(error, OSError)  # a call to a member failed
            self.endings.fail(run, failure, may_be_lost=may_be_lost)

    def _send(self, run: Run) -> None:
        """Start all members.

        Nothing is awaited between the launches: all streams must have gangs in the same order.
        """
        restrict(self.scheduler, run)
        outs = outs_of(self.scheduler, run)
        profiled = bool(recorders(self.scheduler))
        for rank, member in enumerate(run.members):
            fields = {"outs": outs.get(member, []), "profiled": profiled}
            message = run.launch_message(rank, **fields, **self._lacking(member, run))
            at_once(self.scheduler.stream_comms.get(member))
            self.scheduler.worker_send(member, message)
        self.staging.taken(run.stage_keys())

    def _lacking(self, worker: str, run: Run) -> Mapping[str, bytes]:
        """Return what a member may lack of a program, which it keeps from then on."""
        planned, sent = run.planned, self.sent.setdefault(worker, LRU(MOST_SENT, {}))
        lacking = {} if planned.digest in sent else planned.sent
        if run.program.limits.kept_programs:
            sent[planned.digest] = None
        return lacking

    def lacks(self, key: Key, run_id: int, worker: str) -> None:
        """Send the program of a run to a member that has dropped it, and waits for it."""
        run = self.runs.get(key)
        if run is not None and run.run_id == run_id:
            send(self.scheduler, [worker], run.message("dgpu-program", **run.planned.sent))


def _launched(run: Run) -> str:
    return f"dgpu-launched-{run.run_id}"


def ready(
    scheduler: Scheduler, wanted: Iterable[Key], runs: Runs, run_ids: Iterator[int]
) -> Iterator[Run]:
    """Yield runs of the gangs that a new graph needs and that can run without tasks.

    ``runs`` are those of other gangs.
    """
    seen: set[TaskState] = set()
    waiting = [ts for key in wanted if (ts := scheduler.tasks.get(key)) is not None]
    while waiting:
        ts = waiting.pop()
        if ts.state != "released" or ts in seen:
            continue
        seen.add(ts)
        gang = _staged(scheduler, ts, runs) if is_gang(ts.key) else None
        if gang is None:
            waiting += ts.dependencies
        else:
            launch, staged, missing = gang
            yield Run(ts.key, next(run_ids), launch, staged, missing=missing)


def _staged(
    scheduler: Scheduler, gang: TaskState, runs: Runs
) -> tuple[Launch, list[list[Token]], set[Key]] | None:
    """Return the launch of a gang and its input blocks if all are in memory or will be soon.

    The last are the keys of those that do not exist yet, whose workers are likely ones.
    """
    spec = gang.run_spec
    if not (isinstance(spec, Task) and spec.func is tasks.gang) or gang.who_wants:
        return None
    launch, *lists = spec.args
    staged: list[list[Token]] = []
    missing: set[Key] = set()
    for each in lists:
        staged.append([])
        for ref in each.args if isinstance(each, List) else [None]:
            block = _block(scheduler, ref)
            worker = None if block is None else place_of(block, runs)
            if block is None or worker is None:
                return None
            staged[-1].append((block.key, worker))
            if block.state != "memory":
                missing.add(block.key)
    return launch, staged, missing


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
        forget(scheduler, run.stored, stimulus_id)
        return
    finish = Finish(scheduler, stimulus_id)
    unknown = Stored(gang.processing_on.address, 0, pickle.dumps(type(None)), "")
    finish.add(gang, run.stored.pop(run.key, unknown))
    for out in done:
        finish.add(out, run.stored.pop(out.key))
    finish.complete()
    forget(scheduler, run.stored, stimulus_id)


def _is_done(out: TaskState, gang: TaskState, run: Run) -> bool:
    """Return whether a worker has stored the result of an ``out`` that waits for its gang alone."""
    return out.key in run.stored and out.state == "waiting" and out.waiting_on == {gang}


class Staging:
    """Follows ``stage`` tasks, and drops the blocks of released ones."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.workers: dict[Key, str] = {}

    def moved(self, key: Key, finish: str, worker: str | None) -> None:
        """Note a transition; a task that is released while it runs may still stage its block."""
        if finish == "processing":
            ts = self.scheduler.tasks[key]
            worker = ts.processing_on.address if ts.processing_on else None
        if finish in ("processing", "memory") and worker is not None:
            self.workers[key] = worker
        elif finish in ("released", "forgotten", "erred") and key in self.workers:
            # after Dask's messages of this event, of which one may start the task
            asyncio.get_running_loop().call_soon(self._drop, key, self.workers.pop(key))

    def _drop(self, key: Key, worker: str) -> None:
        if self.workers.get(key) != worker:  # else the task runs there again
            send(self.scheduler, [worker], {"op": "dgpu-drop", "keys": [key]})

    def taken(self, keys: Iterable[Key]) -> None:
        """Forget the blocks of a gang."""
        for key in keys:
            self.workers.pop(key, None)

    def remove_worker(self, worker: str) -> None:
        """Forget the blocks of a lost worker."""
        self.taken([key for key, address in self.workers.items() if address == worker])


def restrict(scheduler: Scheduler, run: Run) -> None:
    """Place each ``out`` on the worker that computes its block, if that worker runs tasks.

    If a client releases and requests ``out`` tasks again, Dask creates them without our
    restrictions, so these are set again each time. They only affect speed: an ``out`` elsewhere
    asks the scheduler for the worker of its block, and fetches the block.
    """
    running = {ws.address for ws in scheduler.running}
    for out in scheduler.tasks[run.key].dependents:
        worker = run.worker_of(block_of(out))
        prefer(scheduler, out, worker, loose=worker not in running)


def outs_of(scheduler: Scheduler, run: Run) -> dict[str, list[tuple[Key, Key]]]:
    """Return for each member the blocks that it computes, with the key of their ``out``.

    Without those that do more than to return the block.
    """
    outs: dict[str, list[tuple[Key, Key]]] = {}
    for out in scheduler.tasks[run.key].dependents:
        if out.state == "waiting" and is_out(out):
            block = block_of(out)
            outs.setdefault(run.worker_of(block), []).append((block, out.key))
    return outs


class NewArrays:
    """Places the requested arrays that are computed from nothing, and data for gangs.

    Dask gives each new block to a worker that is idle at that moment, so blocks with the same index
    of two arrays are on different workers, and each step of a loop on new data plans, sends and
    keeps another program. Each worker gets consecutive blocks instead, as many as the others. This
    is a preference: other workers may steal the tasks, and compute them after a loss. It ends with
    the computation, so results are as free as Dask's own.

    Other arrays lie where their inputs are. Tasks whose results nobody requested stay with Dask's
    queue, which limits how many of them are in memory.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._expected: set[str] = set()
        self._placed: set[Key] = set()

    def expect(self, keys: Iterable[Key]) -> None:
        """Note the keys of requested arrays; any thread may call this before they are read."""
        self._expected |= {key[0] for key in keys if isinstance(key, tuple)}

    def place(self, keys: Collection[Key], gangs: Iterable[Key]) -> None:
        """Place those of the requested keys that are of arrays, unless users chose workers.

        Place ``stage`` tasks of these gangs too, if they hold their blocks.
        """
        names, self._expected = self._expected, set()
        places: defaultdict[str, list[Key]] = defaultdict(list)
        for key in keys:
            if isinstance(key, tuple) and len(key) > 1 and key[0] in names:
                places[key[0]].append(key)
        stages = [stage for gang in gangs for stage in self.scheduler.tasks[gang].dependencies]
        held: list[Key] = [stage.key for stage in stages if not stage.dependencies]
        for key in held:
            places[key[0]].append(key)
        workers = list(self.scheduler.workers)
        for blocks in places.values() if workers else ():
            for key, rank in zip(sorted(blocks), dealt(len(blocks), len(workers)), strict=True):
                for ts in _chain(self.scheduler.tasks[key]):
                    prefer(self.scheduler, ts, workers[rank], loose=True)
                    self._placed.add(ts.key)

    def moved(self, key: Key, state: str) -> None:
        """Forget the worker of a block that is computed, or not wanted any more."""
        if key in self._placed and state in ("memory", "erred", "forgotten"):
            self._free(key)

    def add_worker(self) -> None:
        """Let a new worker compute the blocks of lost ones.

        If no worker is left, Dask waits for the preferred one to come back.
        """
        for ts in list(self.scheduler.unrunnable):
            if ts.key in self._placed:
                self._free(ts.key)

    def _free(self, key: Key) -> None:
        self._placed.discard(key)
        if (ts := self.scheduler.tasks.get(key)) is not None:
            prefer(self.scheduler, ts, None, loose=False)


def _chain(ts: TaskState) -> list[TaskState]:
    """Return the tasks of a new block, from the last to the first.

    None if they read other data, if others read what is not requested, or if users chose workers.
    """
    chain = [ts]
    while True:
        last = chain[-1]
        shared = last is not ts and len(last.dependents) > 1
        chosen = last.worker_restrictions or last.host_restrictions or last.resource_restrictions
        if last.state != "released" or shared or chosen or len(last.dependencies) > 1:
            return []
        if not last.dependencies:
            return chain
        chain += last.dependencies
