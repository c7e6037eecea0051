"""Rates of this cluster, measured once for each kind of hardware, transport and protocol.

Workers measure their devices and links as ranks of an epoch, part by part, so that a gang waits
for one part at most. Tasks of a client in this process measure Dask.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from time import perf_counter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
from distributed import Client, Future

from dask_dgpu.algorithms.probe import BLOCK_BYTES, PARTS, Figures
from dask_dgpu.runtime.scheduler.run import Epochs, Ports, by_host, member_hosts
from dask_dgpu.runtime.scheduler.states import MEASUREMENT

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

    from dask_dgpu.comm.bootstrap import Transport

logger = logging.getLogger(__name__)

PATIENCE = 20.0
"""Seconds to wait for the answer of a worker, or for Dask's tasks."""

BACKGROUND_SECONDS = 10.0
"""Seconds after which a measurement in the background is given up.

Tasks that run while a cluster closes make Dask warn, and a busy cluster becomes idle to close.
"""

PAUSE = 0.05
"""Seconds between two looks at a busy cluster."""

QUIET_LOOKS = 6
"""Looks in a row at an idle cluster before it counts as idle: a script pauses between lines."""

TRIES = 3
"""Repetitions of a part that was disturbed; the best figures count."""

REPETITIONS = 3
"""Repetitions of Dask's tasks; the quickest counts."""

TASKS = 100
"""Tasks whose cost is measured at once."""

STEP_SECONDS = 3e-4
"""Host time of a program's step besides its launches: plan, progress and report."""

BLOCKS = 8
"""Blocks that these tasks read."""

HOPS = 5
"""Dependent tasks, each on another worker than the one before."""


QUIET_SECONDS = 5.0
"""Most seconds until a measurement that is stopped has released its tasks."""


@dataclass(frozen=True)
class Terms:
    """What is measured: ``kind`` names hardware, transport and protocol."""

    kind: str
    device: str
    transport: Transport
    timeout: float
    ports: Ports = None


class Rates:
    """The measured figures of each kind of cluster, by their names in the cost model."""

    def __init__(self, scheduler: Scheduler, epochs: Epochs) -> None:
        self.scheduler = scheduler
        self.epochs = epochs
        self.known: dict[str, Figures] = {}
        self._lock = asyncio.Lock()  # two measurements at once would disturb each other
        self._background: asyncio.Task[None] | None = None
        self._answers: dict[int, tuple[set[str], list[Figures | None], asyncio.Future[None]]] = {}
        self._tickets = count()
        scheduler.handlers.update({"dgpu_measure": self.measure, "dgpu_rates": self.keep})
        scheduler.handlers["dgpu_quiet"] = self.quiet
        scheduler.stream_handlers["dgpu-measured"] = self.measured

    async def measure(self, again: bool, **terms: Any) -> Figures:
        """Return the figures of a kind of cluster; measure it unless they are known.

        They lack figures that could not be measured: a worker was lost, or did not answer.
        """
        given = Terms(**terms)
        if again:
            self.known.pop(given.kind, None)
        return await self._ensure(given)

    def start(self, terms: Terms) -> None:
        """Measure in the background, if the cluster is idle soon."""

        async def measure() -> None:
            try:
                await asyncio.wait_for(self._ensure(terms), BACKGROUND_SECONDS)
            except TimeoutError:
                logger.info("the cluster is not measured: it is busy")

        if self._background is None or self._background.done():
            self._background = asyncio.ensure_future(measure())

    def keep(self, kind: str, figures: Figures | None = None) -> Figures:
        """Return the figures of a kind of cluster, after these were stored as its figures."""
        if figures is not None:
            self.known[kind] = dict(figures)
        return self.known.get(kind, {})

    def measured(self, ticket: int, figures: Figures | None, worker: str) -> None:
        """Note the figures of a rank, ``None`` if it could not measure."""
        awaited, found, done = self._answers.get(ticket, (set(), [], None))
        if done is not None and worker in awaited:
            awaited.discard(worker)
            found.append(figures)
            if not done.done() and (not awaited or figures is None):
                done.set_result(None)

    def close(self) -> None:
        """Stop to measure."""
        if self._background is not None:
            self._background.cancel()

    async def quiet(self) -> None:
        """Stop to measure in the background, and return once nothing of it is left."""
        self.close()
        if self._background is not None:
            await asyncio.wait([self._background], timeout=QUIET_SECONDS)

    async def _ensure(self, terms: Terms) -> Figures:
        """Return the figures of a kind of cluster, measured now if they are unknown."""
        async with self._lock:
            if terms.kind not in self.known:
                self.known[terms.kind] = await self._measure(terms)
            return self.known[terms.kind]

    async def _measure(self, terms: Terms) -> Figures:
        figures: Figures = {}
        await self._idle()
        members = by_host(self.scheduler.workers)
        try:
            for part in PARTS:
                figures |= await self._undisturbed(partial(self._part, part, members, terms))
            figures |= await self._undisturbed(partial(_dask, self.scheduler, terms.device))
        except Exception as error:  # predictions have defaults for the rest
            logger.info("the cluster is not measured further: %r", error)
        launch = figures.pop("launch_seconds", None)
        if launch is not None:
            figures["step_seconds"] = launch + STEP_SECONDS
        return figures

    async def _undisturbed(self, measure: Callable[[], Awaitable[Figures]]) -> Figures:
        """Measure while nothing else runs, if the cluster is idle for long enough.

        Whatever disturbs a measurement makes it slower, so the best of several tries counts.
        """
        found = []
        for _ in range(TRIES):
            if self._busy():
                await self._idle()
            found.append(await measure())
            if not self._busy():
                break
        return _each(found, best=True)

    async def _idle(self) -> None:
        """Return when no task has run for some time."""
        looks = 0
        while looks < QUIET_LOOKS:
            looks = 0 if self._busy() else looks + 1
            await asyncio.sleep(PAUSE)

    def _busy(self) -> bool:
        return any(ws.processing for ws in self.scheduler.workers.values())

    async def _part(self, part: str, members: tuple[str, ...], terms: Terms) -> Figures:
        """Have all members measure a part at the same time; the slowest counts.

        Raises
        ------
        OSError
            If a member is lost or does not answer, or there is none.
        """
        if not members:
            raise OSError("there is no worker")
        answers: list[Figures | None] = []
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ticket = next(self._tickets)
        self._answers[ticket] = set(members), answers, done
        epoch = members, terms.transport, terms.timeout, terms.ports
        try:
            hosts = member_hosts(members)
            self.epochs.connect(*epoch, part=part, ticket=ticket, hosts=hosts)
            await asyncio.wait_for(done, PATIENCE)
        finally:
            del self._answers[ticket]
        found = [answer for answer in answers if answer is not None]
        if len(found) < len(members):
            raise OSError("a worker is lost")
        return _each(found, best=False)


def _each(answers: list[Figures], *, best: bool) -> Figures:
    """Return the best of each figure, or the worst: a short time and a high rate are good.

    A rank alone on its host lacks the figures within a host.
    """
    found = {}
    for name in dict.fromkeys(chain.from_iterable(answers)):
        is_time = name.endswith(("seconds", "latency"))
        values = [answer[name] for answer in answers if name in answer]
        found[name] = (min if is_time == best else max)(values)
    return found


async def _dask(scheduler: Scheduler, device: str) -> Figures:
    """Measure Dask's tasks, round trips and transfers, by tasks of a client."""
    client: Any = Client(
        scheduler.address, security=scheduler.security, asynchronous=True, set_as_default=False
    )
    async with client:
        workers = list(scheduler.workers)
        return await asyncio.wait_for(_dask_figures(client, workers, device), PATIENCE)


async def _dask_figures(client: Client, workers: list[str], device: str) -> Figures:
    async def done(futures: list[Future[Any]]) -> None:
        # distributed.wait would ask the user's client, and block this event loop for its answer
        await asyncio.gather(*(future.exception() for future in futures))

    async def seconds(submit: Callable[[], Any]) -> float:
        found = []
        for _ in range(REPETITIONS):
            begin = perf_counter()
            await done(submit())
            found.append(perf_counter() - begin)
        return min(found)

    def tasks(count: int) -> Any:
        """Submit so many tasks that read blocks, and one that reads them all.

        Tasks that read nothing, or few blocks, would wait in the scheduler for a free thread.
        """
        blocks, name = (f"{MEASUREMENT}-{uuid4().hex}" for _ in range(2))
        graph: dict[Any, Any] = {(blocks, at): (_nothing, at) for at in range(BLOCKS)}
        for at in range(count):
            graph[name, at] = (_nothing, (blocks, at % BLOCKS))
        graph[name] = (_nothing, [(name, at) for at in range(count)])
        return client.get(graph, [name], sync=False)

    def on(at: int, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        worker = workers[at % len(workers)]
        key = f"{MEASUREMENT}-{uuid4().hex}"
        return client.submit(function, *arguments, workers=[worker], key=key)

    def chain(hops: int) -> list[Future[Any]]:
        last = on(0, _nothing, 0)
        for at in range(hops):
            last = on(at + 1, _nothing, last)
        return [last]

    few, many = [await seconds(partial(tasks, count)) for count in (BLOCKS, BLOCKS + TASKS)]
    one, last = [await seconds(partial(chain, hops)) for hops in (0, HOPS)]
    figures = {"task_seconds": (many - few) / TASKS, "round_trip_seconds": (last - one) / HOPS}
    if len(workers) > 1:
        nbytes = BLOCK_BYTES[device]
        times = []
        for _ in range(REPETITIONS):  # with new blocks: workers keep those that they received
            blocks = [on(at, _block, nbytes, device) for at in range(len(workers))]
            await done(blocks)
            begin = perf_counter()
            await done([on(at + 1, _nothing, block) for at, block in enumerate(blocks)])
            times.append(perf_counter() - begin)
        figures["dask_bandwidth"] = nbytes / max(min(times) - one, 1e-6)
    return figures


def _nothing(value: Any) -> None:
    """Do nothing with a value, which Dask brings to this worker."""


def _block(nbytes: int, device: str) -> Any:
    """Return a block of the kind that Dask arrays have on a device."""
    if device == "cuda":
        import cupy

        return cupy.ones(nbytes, "uint8")
    return np.ones(nbytes, "uint8")
