"""The worker's side of gangs: blocks handed over, programs run in ticket order."""

from __future__ import annotations

import logging
import pickle
import queue
import threading
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.plugin import WorkerPlugin
from distributed.exceptions import Reschedule
from distributed.protocol.serialize import to_serialize
from distributed.utils import sync

from dask_dgpu.errors import CommAbortedError, CommError
from dask_dgpu.runtime.background import ended, in_background
from dask_dgpu.runtime.execute import execute
from dask_dgpu.runtime.failure import IN_PROGRAM, failure_of, opened
from dask_dgpu.runtime.interpreter import guard_current_frames
from dask_dgpu.runtime.plainly import compute_plainly
from dask_dgpu.runtime.plans import Plans, received
from dask_dgpu.runtime.program import Program
from dask_dgpu.runtime.tasks import PLUGIN
from dask_dgpu.runtime.worker.job import Job, WarmUp
from dask_dgpu.runtime.worker.member import Member

if TYPE_CHECKING:
    from distributed.worker import Worker

logger = logging.getLogger(__name__)

Array = Any
Key = Any

CLOSING_SECONDS = 2.0
"""How long a worker that closes waits for threads that may be within C++."""


@dataclass(frozen=True)
class Handle:
    """What a ``gang`` task returns: the run whose results ``out`` tasks take."""

    key: Key
    run_id: int


class GangWorkerPlugin(WorkerPlugin):
    """Runs this worker's part of every gang.

    Blocks come in through ``stage`` tasks and leave through ``out`` tasks. The
    scheduler launches programs over the worker's stream, whose order is that of
    the tickets; one thread runs them in that order, so that two gangs in flight
    can not wait for each other.

    Parameters
    ----------
    device : str
        ``"cpu"`` or ``"cuda"``.
    """

    name = PLUGIN
    idempotent = True

    def __init__(self, device: str) -> None:
        self.device = device

    def setup(self, worker: Worker) -> None:
        """Start the program thread and listen to the scheduler."""
        guard_current_frames()
        self.worker = worker
        self.last_seconds = 0.0
        self.staged: dict[Key, Array] = {}
        self.unwanted: set[Key] = set()
        self.results: dict[tuple[Key, int], dict[Key, Array]] = {}
        self.jobs: dict[tuple[Key, int], Job] = {}
        self.queue: queue.SimpleQueue[Job | WarmUp | None] = queue.SimpleQueue()
        self.member = Member(self.device, _host_of(worker), worker.state.nthreads)
        worker.stream_handlers.update(
            {
                "dgpu-launch": self._launch,
                "dgpu-give-up": self._give_up,
                "dgpu-free": self._free,
                "dgpu-drop": self._drop,
                "dgpu-leave": self._leave,
                "dgpu-warm-up": self._warm_up,
            }
        )
        worker.handlers.update(
            {
                "dgpu_serve_store": self._serve_store,
                "dgpu_report": self._report,
                "dgpu_take": self._take,
                "dgpu_examine": self._examine,
            }
        )
        self.thread = threading.Thread(target=self._run_jobs, name="dask-dgpu", daemon=True)
        self.thread.start()

    async def teardown(self, worker: Worker) -> None:
        """Give up what runs, and give the threads a moment to end."""
        for job in self.jobs.copy().values():
            job.given_up.set()
        self.member.close("the worker closes")
        self.queue.put(None)
        await ended([self.thread, *self.member.connecting], CLOSING_SECONDS)

    # tasks, in threads of the worker's pool

    def stage(self, key: Key, block: Array) -> tuple[Key, str]:
        """Keep a block for the gang; return where it is."""
        self.staged[key] = block
        if key in self.unwanted:  # dropped in this very moment
            self.unwanted.discard(key)
            self.staged.pop(key, None)
        return key, self.worker.address

    def run_gang(
        self, key: Key, program: Program, staged: Sequence[list[Any]]
    ) -> Handle | dict[Key, Array]:
        """Have the scheduler run a program on the workers; return when all are done.

        Returns a handle, or blocks that Dask has made instead, by name and place.
        """
        answer = sync(
            self.worker.loop,
            self.worker.scheduler.dgpu_gang,
            key=key,
            program=pickle.dumps(program),
            staged=[list(tokens) for tokens in staged],
            worker=self.worker.address,
        )
        if answer["outcome"] == "restarted":
            raise Reschedule
        if answer["outcome"] == "failed":
            raise opened(answer["error"])
        if answer["outcome"] == "plain":
            return compute_plainly(answer)
        return Handle(key, answer["run_id"])

    def result(self, handle: Handle, block: Key, out: Key) -> Array:
        """Return a block of a finished run, by the name of its array and its place.

        ``out`` is the key of the task that asks.
        """
        try:
            return self.results[handle.key, handle.run_id][block]
        except KeyError:
            return sync(self.worker.loop, self._fetch, handle, block, out)

    async def _fetch(self, handle: Handle, block: Key, out: Key) -> Array:
        """Get a block from the worker that made it."""
        what = {"key": handle.key, "run_id": handle.run_id, "block": block}
        here = self.worker.address
        where = partial(self.worker.scheduler.dgpu_where, **what, out=out, worker=here)
        place = await where(missing=here)
        if place is not None:
            try:
                answer = await self.worker.rpc(place).dgpu_take(**what)
            except OSError:  # it is lost, perhaps before the scheduler knows
                answer = {}
            if "block" in answer:
                return answer["block"]
            await where(missing=place)
        raise Reschedule  # the scheduler starts the gang over, and this task with it

    # messages from the scheduler, on the event loop: these must never raise

    def _launch(self, blocks: dict[str, list[tuple[Any, Key]]], **fields: Any) -> None:
        try:
            mine = {
                name: {tuple(index): self.staged.pop(key) for index, key in given}
                for name, given in blocks.items()
            }
        except KeyError as missing:
            self._send("dgpu-stale", fields["key"], fields["run_id"], missing=str(missing))
            return
        job = Job(self.worker, blocks=mine, **fields)
        self.jobs[job.key, job.run_id] = job
        self.queue.put(job)

    def _give_up(self, key: Key, run_id: int, epoch: str, reason: str) -> None:
        job = self.jobs.pop((key, run_id), None)
        if job is not None:
            job.given_up.set()
            if job.phase == "queued":  # else the device may be reading them
                job.blocks.clear()
        self.results.pop((key, run_id), None)
        self.member.leave(epoch, reason)

    def _free(self, key: Key, run_id: int) -> None:
        self.results.pop((key, run_id), None)

    def _drop(self, keys: list[Key]) -> None:
        for key in keys:
            task = self.worker.state.tasks.get(key)
            if task is not None and task.state in ("executing", "cancelled"):
                self.unwanted.add(key)
            if self.staged.pop(key, None) is not None:
                self.unwanted.discard(key)

    def _leave(self, epoch: str, reason: str) -> None:
        self.member.leave(epoch, reason)

    def _warm_up(self, **fields: Any) -> None:
        self.queue.put(WarmUp(**fields))

    async def _serve_store(self, epoch: str) -> tuple[str, int]:
        return await in_background(partial(self.member.serve_store, epoch))  # it imports torch

    def _report(self) -> dict[str, Any]:
        return {
            "device": self.member.describe(),
            "running": [job.report for job in self.jobs.copy().values()],
            "staged": len(self.staged),
            "last_seconds": self.last_seconds,
            "results": sum(map(len, self.results.copy().values())),
        }

    def _take(self, key: Key, run_id: int, block: Key) -> dict[str, Any]:
        blocks = self.results.get((key, run_id), {})
        block = tuple(block)
        return {"block": to_serialize(blocks[block])} if block in blocks else {}

    async def _examine(self) -> str:
        return await in_background(self.member.examine)

    def _send(self, op: str, key: Key, run_id: int, **facts: Any) -> None:
        message = {"op": op, "key": key, "run_id": run_id, **facts}
        self.worker.loop.add_callback(self.worker.batched_stream.send, message)

    # the program thread

    def _run_jobs(self) -> None:
        while (job := self.queue.get()) is not None:
            try:
                if isinstance(job, WarmUp):
                    self._join_early(job)
                elif not job.given_up.is_set():
                    self._run(job)
            except Exception:  # the thread must live: the next gang has a rank here too
                logger.warning("a rank could not be made ready for gangs", exc_info=True)
            del job

    def _join_early(self, warm_up: WarmUp) -> None:
        try:
            self.member.join(**asdict(warm_up))
        except CommAbortedError:
            pass  # nobody needs it any more
        except Exception as error:
            epoch = warm_up.epoch
            logger.info("rank %s could not join epoch %s: %s", warm_up.rank, epoch, error)
            message = {"op": "dgpu-broken", "epoch": epoch, "reason": str(error)}
            self.worker.loop.add_callback(self.worker.batched_stream.send, message)

    def _run(self, job: Job) -> None:
        name = (job.key, job.run_id)
        try:
            program: Program = pickle.loads(job.program)
            job.phase = "connect"
            comm = self.member.join(
                epoch=job.epoch,
                store=job.store,
                rank=job.rank,
                size=job.size,
                transport=program.transport,
                timeout=program.limits.timeout,
                patient=True,
            )
            job.phase = IN_PROGRAM
            fixed = Plans(program, received(job.plans))
            begin = perf_counter()
            device = self.member.device
            blocks = execute(program, fixed, comm, device, job.blocks, job)
            self.last_seconds = perf_counter() - begin
            self.results[name] = blocks
            if job.given_up.is_set():
                self.results.pop(name, None)
            else:
                self._send(
                    "dgpu-finished", job.key, job.run_id, spans=list(map(astuple, job.spans))
                )
        except BaseException as error:
            if not job.given_up.is_set():
                self._fail(job, error)
            self.member.device.recover()
        finally:
            job.blocks.clear()
            self.jobs.pop(name, None)

    def _fail(self, job: Job, error: BaseException) -> None:
        failure = failure_of(error, job.rank, self.worker.address, job.phase)
        logger.info("gang %s: %s", job.key, failure)
        lost = isinstance(error, CommError)
        self._send("dgpu-failed", job.key, job.run_id, lost=lost, error=pickle.dumps(failure))


def _host_of(worker: Worker) -> str:
    from distributed.comm.addressing import get_address_host

    return str(get_address_host(worker.address))
