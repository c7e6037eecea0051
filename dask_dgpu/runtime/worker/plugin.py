"""The worker's side of gangs: it keeps blocks, runs programs in order, and returns memory."""

from __future__ import annotations

import atexit
import gc
import logging
import pickle
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, Literal

from dask.utils import typename
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.protocol.serialize import to_serialize
from distributed.utils import sync
from distributed.worker_state_machine import FreeKeysEvent
from tornado.ioloop import PeriodicCallback

from dask_dgpu.algorithms.probe import PARTS, Figures
from dask_dgpu.errors import CommAbortedError, CommError
from dask_dgpu.kernels.device.host import return_memory
from dask_dgpu.kernels.device.memory import lacks_memory
from dask_dgpu.runtime.background import ended, in_background
from dask_dgpu.runtime.execute import execute
from dask_dgpu.runtime.failure import IN_PROGRAM, RankError, failure_of
from dask_dgpu.runtime.program import Launch
from dask_dgpu.runtime.tasks import PLUGIN
from dask_dgpu.runtime.worker.calls import Caller
from dask_dgpu.runtime.worker.fetch import Handle, fetch, request
from dask_dgpu.runtime.worker.host import own_host
from dask_dgpu.runtime.worker.links import Links
from dask_dgpu.runtime.worker.member import MOST_SPANS, Job, Member, Programs
from graph_opt.dask_graph.internals import finalize
from graph_opt.model.cost import Hosts

if TYPE_CHECKING:
    from distributed.comm.core import Comm as Connection
    from distributed.core import Status
    from distributed.worker import Worker

logger = logging.getLogger(__name__)

Array = Any
Key = Any

Known = tuple[Key, tuple[int, bytes, str]]
"""What Dask's scheduler knows of a result: its key; its bytes, pickled type and type's name."""

ENDED = ("memory", "error", "released", "forgotten")  # such tasks stage no block

CLOSING_SECONDS = 2.0
"""Seconds for which a closing worker waits for threads that may be within C++."""

REST_SECONDS = 10.0
"""Seconds between two releases while the pressure lasts."""


class GangWorkerPlugin(WorkerPlugin):
    """Runs this worker's part of every gang.

    ``stage`` tasks deliver blocks, and ``out`` tasks return them. The scheduler launches programs
    in the same order on all workers. One thread runs them, so no two gangs wait for each other.
    """

    name = PLUGIN
    idempotent = True

    def __init__(self, device: str) -> None:
        self.device = device

    def setup(self, worker: Worker) -> None:
        """Start the program thread and listen to the scheduler."""
        if worker.nanny is not None:  # its process ends in 0.15 s of CPU time instead of 0.9
            atexit.register(gc.freeze)
        self.worker = worker
        self.last_seconds = 0.0
        self.staged: dict[Key, Array] = {}
        self.unwanted: set[Key] = set()
        self.results: dict[tuple[Key, int], dict[Key, Array]] = {}
        self.stored: dict[tuple[Key, int], list[Key]] = {}
        self.jobs: dict[tuple[Key, int], Job] = {}
        self.programs = Programs(self.device)
        self.queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.callers: dict[str, Caller] = {}
        self.serving: Caller | None = None  # the last in the queue
        host = own_host(worker.address, worker.scheduler.address)
        reach = partial(self._send, "dgpu-share"), partial(Links, worker)
        self.member = Member(self.device, host, worker.state.nthreads, *reach)
        worker.stream_handlers.update(
            {
                "dgpu-launch": self._launch,
                "dgpu-program": self._program,
                "dgpu-give-up": self._give_up,
                "dgpu-free": self._free,
                "dgpu-drop": self._drop,
                "dgpu-relieve": self.relieve,
                "dgpu-leave": self.member.leave,
                "dgpu-shared": self.member.receive,
                "dgpu-warm-up": self._warm_up,
                "dgpu-session": self._session,
            }
        )
        worker.handlers.update(
            {
                "dgpu_report": self._report,
                "dgpu_take": self._take,
                "dgpu_examine": self._examine,
                "dgpu_link": self.member.accept,
                "dgpu_calls": self._calls,
            }
        )
        self.thread = threading.Thread(target=self._run_jobs, name="dask-dgpu", daemon=True)
        self.thread.start()
        watch_memory(worker, self.relieve)

    async def teardown(self, worker: Worker) -> None:
        """Give up all jobs, and wait a moment for the threads to end."""
        for job in self.jobs.copy().values():
            job.give_up()
        for caller in [*self.callers.values()]:
            caller.close("the worker closes")
        self.member.close("the worker closes")
        self.queue.put(None)
        await ended([self.thread, *self.member.connecting], CLOSING_SECONDS)

    # tasks, in threads of the worker's pool

    def stage(self, key: Key, block: Array) -> tuple[Key, str]:
        """Keep a block for the gang; return its key and this worker's address."""
        self.staged[key] = block
        if key in self.unwanted:
            self.staged.pop(key, None)
        return key, self.worker.address

    def run_gang(
        self, key: Key, launch: Launch, staged: Sequence[list[Any]]
    ) -> Handle | dict[Key, Array]:
        """Run a program on the workers; as :func:`request`."""
        return request(self.worker, key, launch, staged)

    def result(self, handle: Handle, block: Key, out: Key) -> Array:
        """Return a block of a finished run, by the name of its array and its place.

        ``out`` is the key of the calling task.
        """
        try:
            return self.results[handle.key, handle.run_id][block]
        except KeyError:
            return sync(self.worker.loop, fetch, self.worker, handle, block, out)

    def transition(self, key: Key, start: str, finish: str, **kwargs: Any) -> None:
        """Remember unwanted blocks no longer than their tasks."""
        if finish in ENDED:
            self.unwanted.discard(key)

    # messages from the scheduler, on the event loop: the handlers must never raise or block

    def _launch(self, blocks: list[list[tuple[Any, Key]]], **fields: Any) -> None:
        in_memory = partial(resident, self.worker.data)
        take = in_memory if fields["in_memory"] else self.staged.pop
        try:
            own = [{tuple(index): take(key) for index, key in tokens} for tokens in blocks]
        except KeyError as missing:
            key, run_id = fields["key"], fields["run_id"]
            self._send("dgpu-stale", key=key, run_id=run_id, missing=str(missing))
            return
        job = Job(self.worker, blocks=own, **fields)
        self.jobs[job.key, job.run_id] = job
        self._enqueue(partial(self._run, job))

    def _program(self, key: Key, run_id: int, text: bytes, plans: bytes) -> None:
        job = self.jobs.get((key, run_id))
        if job is not None:
            job.receive(text, plans)

    def _give_up(self, key: Key, run_id: int, epoch: str, reason: str) -> None:
        job = self.jobs.pop((key, run_id), None)
        if job is not None:
            job.give_up()
            if job.phase == "queued":  # else the device may be reading them
                job.blocks.clear()
            else:
                logger.info("gang %s: %s; this rank is at %s", key, reason, job.phase)
        self.results.pop((key, run_id), None)
        if (key, run_id) in self.stored:
            withdraw(self.worker, self.stored.pop((key, run_id)), f"dgpu-void-{run_id}")
        self.member.leave(epoch, reason)

    def _free(self, key: Key, run_id: int) -> None:
        self.results.pop((key, run_id), None)
        self.stored.pop((key, run_id), None)

    def _drop(self, keys: list[Key]) -> None:
        for key in keys:
            task = self.worker.state.tasks.get(key)
            if task is not None and task.state not in ENDED:
                self.unwanted.add(key)
            self.staged.pop(key, None)

    def _warm_up(self, **fields: Any) -> None:
        self._enqueue(partial(self._join_early, **fields))

    def relieve(self) -> None:
        """Free what is kept for later gangs, after the jobs in the queue; tell the scheduler."""
        self._enqueue(self._release)
        self._send("dgpu-relieve")

    def _enqueue(self, call: Callable[[], None]) -> None:
        """Let the program thread call a function, after the session before it."""
        self.queue.put(call)
        serving, self.serving = self.serving, None
        if serving is not None:
            serving.make_way()

    async def _calls(self, comm: Connection, caller: str) -> Status:
        """Read the calls of a client, until it leaves."""
        served = self.callers[caller] = Caller(self, comm)
        try:
            return await served.read()
        finally:
            del self.callers[caller]

    def _session(self, caller: str, **fields: Any) -> None:
        served = self.callers.get(caller)
        if served is not None:
            self._enqueue(partial(served.serve, **fields))
            served.sessions += 1
            self.serving = served

    def leave(self, epoch: str, reason: str) -> None:
        """Leave an epoch, and let the other members leave it; never blocks."""
        self.member.leave(epoch, reason)
        self._send("dgpu-broken", epoch=epoch, reason=reason)

    def _report(self) -> list[dict[str, Any]]:
        return [job.report for job in self.jobs.copy().values()]

    def _take(self, key: Key, run_id: int, block: Key) -> dict[str, Any]:
        found = self.results.get((key, run_id), {}).get(tuple(block))
        return {} if found is None else {"block": to_serialize(found)}

    async def _examine(self) -> tuple[str, dict[str, str | None]]:
        return await in_background(self.member.health)

    def _send(self, op: str, **facts: Any) -> None:
        self.worker.loop.add_callback(self.worker.batched_stream.send, {"op": op, **facts})

    # the program thread

    def _run_jobs(self) -> None:
        while (call := self.queue.get()) is not None:
            try:
                call()
            except Exception:  # the thread must go on: the next gang has a rank here too
                logger.warning("a rank could not prepare for gangs", exc_info=True)
            del call

    def _release(self) -> None:
        self.programs.shrink(0)
        self.member.release()

    def _join_early(self, part: str | None = None, hosts: Hosts = (), **fields: Any) -> None:
        """Connect, and measure a part of the rates of ranks on these hosts, if there is one."""
        figures: Figures | None = None
        try:
            comm = self.member.join(**fields)
            if part is not None:
                figures = PARTS[part](comm, self.member.device, tuple(hosts))
        except CommAbortedError:
            pass  # the epoch is over
        except Exception as error:
            logger.info("rank %(rank)s could not join epoch %(epoch)s", fields, exc_info=error)
            self._send("dgpu-broken", epoch=fields["epoch"], reason=str(error))
        if part is not None:
            self._send("dgpu-measured", part=part, figures=figures)

    def _run(self, job: Job) -> None:
        if job.given_up.is_set():
            return
        try:
            ask = partial(self._send, "dgpu-lacks", key=job.key, run_id=job.run_id)
            todo = self.programs.opened(job, ask)
            program = todo.program
            job.phase = "connect"
            comm = self.member.join(
                epoch=job.epoch,
                rank=job.rank,
                size=job.size,
                transport=program.transport,
                timeout=program.limits.timeout,
                ports=program.limits.ports,
                patient=True,
            )
            job.phase = IN_PROGRAM
            begin = perf_counter()
            blocks = execute(todo, job.names, comm, self.member.device, job.blocks, job)
            self.last_seconds = perf_counter() - begin
            self.worker.loop.add_callback(self._finish, job, blocks)
        except BaseException as error:
            self.jobs.pop((job.key, job.run_id), None)
            if not job.given_up.is_set():
                self._fail(job, error)
            self.member.device.recover()
            if lacks_memory(error):
                self.relieve()  # once the frames of the error are gone
        finally:
            job.blocks.clear()

    def _finish(self, job: Job, blocks: dict[Key, Array]) -> None:
        """Store results, and report the end; on the event loop, as all that may give up a run."""
        if self.jobs.pop(name := (job.key, job.run_id), None) is None:  # given up
            return
        self.results[name] = blocks
        # only what ``compute`` requests has a name alone as key, and is a copy, as Dask's
        numbers = {
            out: finalize([blocks[block]]) for block, out in job.outs if isinstance(out, str)
        }
        results: dict[Key, Any] = {out: blocks[block] for block, out in job.outs} | numbers
        if job.holds:
            results[job.key] = Handle(*name)
        stored = store(self.worker, results)
        self.stored[name] = [key for key, _ in stored]
        spans = [span.values() for span in job.spans[:MOST_SPANS]]
        facts = {"spans": spans, "details": job.details, "stored": stored}
        facts["numbers"] = {out: to_serialize(number) for out, number in numbers.items()}
        self._send("dgpu-finished", key=job.key, run_id=job.run_id, **facts)

    def _fail(self, job: Job, error: BaseException) -> None:
        failure = failure_of(error, job.rank, self.worker.address, str(job.phase), job.tried)
        logger.info("gang %s: %s", job.key, failure)
        self._send(
            "dgpu-failed",
            key=job.key,
            run_id=job.run_id,
            lost=isinstance(error, CommError) and not isinstance(failure, RankError),
            error=pickle.dumps(failure),
        )


def resident(data: Mapping[Key, Array], key: Key) -> Array:
    """Return a block of a worker's data.

    Raises
    ------
    KeyError
        If it is not there, or spilled: reading a file would block the event loop.
    """
    parts = [getattr(data, name, None) for name in ("device", "fast")]  # of data that may spill
    for part in [part for part in parts if part is not None] or [data]:
        if key in part:
            return part[key]
    raise KeyError(key)


def store(worker: Worker, results: Mapping[Key, Any]) -> list[Known]:
    """Store results as those of tasks on this worker; return the stored ones.

    A task that the worker knows otherwise runs as usual. Call this on the event loop.
    """
    known = worker.state.tasks
    fresh = {key: result for key, result in results.items() if _is_free(known.get(key))}
    nbytes = worker.update_data(fresh)["nbytes"]
    return [
        (key, (nbytes[key], pickle.dumps(type(result)), typename(type(result))))
        for key, result in fresh.items()
    ]


def _is_free(task: Any) -> bool:
    return task is None or task.state in ("released", "forgotten")


def withdraw(worker: Worker, keys: Iterable[Key], stimulus_id: str) -> None:
    """Free results that the scheduler will not know of."""
    worker.handle_stimulus(FreeKeysEvent(keys=list(keys), stimulus_id=stimulus_id))


def watch_memory(worker: Worker, release: Callable[[], None]) -> None:
    """Watch the memory of a worker until it closes; ``release`` frees what is kept for gangs."""
    pressure, interval = Pressure(worker, release), worker.memory_manager.memory_monitor_interval
    if pressure.limit is not None and interval:  # as often as Dask checks
        callback = PeriodicCallback(pressure.check, interval * 1000)
        worker.periodic_callbacks["dgpu-pressure"] = callback
        callback.start()


class Pressure:
    """Returns freed memory while Dask spills results, and calls ``release`` when that begins.

    It begins if the process of a worker needs more memory than a threshold of Dask:
    ``distributed.worker.memory.spill``, or if there is none that for pausing. It ends below
    ``distributed.worker.memory.target``. Until then memory is returned at each check, because Dask
    would spill all results if freed memory stayed in the process. Without thresholds, or without a
    memory limit, nothing is watched.
    """

    def __init__(self, worker: Worker, release: Callable[[], None]) -> None:
        self._worker, self._release = worker, release
        self._last = -REST_SECONDS
        self._lasts = False

    @property
    def limit(self) -> float | None:
        """The bytes of the process above which it must free memory, ``None`` for any."""
        manager = self._worker.memory_manager
        return self._bytes(manager.memory_spill_fraction or manager.memory_pause_fraction)

    def _bytes(self, fraction: float | Literal[False]) -> float | None:
        limit = self._worker.memory_manager.memory_limit
        return limit * fraction if limit and fraction else None

    def check(self) -> None:
        """Return memory while the process needs too much; release it once in a while."""
        limit, now = self.limit, monotonic()
        if limit is None:
            return
        enough = self._bytes(self._worker.memory_manager.memory_target_fraction)
        needed = self._worker.monitor.get_process_memory()
        self._lasts = needed > (enough or limit if self._lasts else limit)
        if not self._lasts:
            return
        return_memory()
        if needed > limit and now >= self._last + REST_SECONDS:
            self._last = now
            self._release()
