"""Rates of this cluster, measured once for each kind of hardware, transport and protocol.

Workers measure their devices and links as ranks of an epoch, part by part, so that a gang waits
for one part at most. Tasks of a client in this process measure Dask. What ran beside other tasks
is measured again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from itertools import chain
from time import perf_counter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
from distributed import Client, Future

from dask_dgpu.algorithms.probe import BLOCK_BYTES, PARTS, Figures
from dask_dgpu.runtime.scheduler.run import Epochs, by_host, member_hosts
from dask_dgpu.runtime.scheduler.states import MEASUREMENT

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

logger = logging.getLogger(__name__)

PATIENCE = 20.0
"""Seconds to wait for the answers of workers, or for Dask's tasks."""

BACKGROUND_SECONDS = 10.0
"""Seconds after which a measurement in the background is given up.

Tasks that run while a cluster closes make Dask warn, and a busy cluster becomes idle to close.
"""

QUIET_SECONDS = 5.0
"""Most seconds until a measurement that is stopped has released its tasks."""

PAUSE = 0.05
"""Seconds between two looks at a busy cluster."""

QUIET_LOOKS = 6
"""Looks in a row at an idle cluster before it counts as idle: a script pauses between lines."""

REPETITIONS = 3
"""Repetitions of Dask's tasks; the quickest counts."""

TASKS, BLOCKS = 100, 8
"""Tasks whose cost is measured at once, and blocks that they read."""

HOPS = 5
"""Dependent tasks, each on another worker than the one before."""

STEP_SECONDS = 3e-4
"""Host time of a program's step besides its launches: plan, progress and report."""


class Rates:
    """The measured figures of each ``known`` kind of cluster, by their names in the cost model."""

    def __init__(self, scheduler: Scheduler, epochs: Epochs) -> None:
        self.scheduler = scheduler
        self.epochs = epochs
        self.known: dict[str, Figures] = {}
        self._lock = asyncio.Lock()  # two measurements at once would disturb each other
        self._background: asyncio.Task[None] | None = None
        self._answers: dict[tuple[str, str], asyncio.Future[Figures]] = {}  # by part and worker
        scheduler.handlers |= {"dgpu_measure": self.measure, "dgpu_quiet": self.quiet}
        scheduler.handlers["dgpu_rates"] = self.keep
        scheduler.stream_handlers["dgpu-measured"] = self.measured

    async def measure(self, again: bool, kind: str, **terms: Any) -> Figures:
        """Return the figures of a kind of cluster; measure it unless they are known.

        They lack figures that could not be measured: a worker was lost, or did not answer.
        """
        async with self._lock:
            if again or kind not in self.known:
                self.known[kind] = await self._measure(**terms)
            return self.known[kind]

    def start(self, **terms: Any) -> None:
        """Measure in the background, if the cluster is idle soon."""

        async def measure() -> None:
            with suppress(TimeoutError):  # it is busy
                await asyncio.wait_for(self.measure(again=False, **terms), BACKGROUND_SECONDS)

        if self._background is None or self._background.done():
            self._background = asyncio.ensure_future(measure())

    def keep(self, kind: str, figures: Figures) -> None:
        """Store the figures of a kind of cluster."""
        self.known[kind] = dict(figures)

    def measured(self, part: str, figures: Figures | None, worker: str) -> None:
        """Note the figures of a rank, ``None`` if it could not measure."""
        answer = self._answers.get((part, worker))
        if answer is not None and not answer.done():
            if figures is None:
                answer.set_exception(OSError("a worker is lost"))
            else:
                answer.set_result(figures)

    def close(self) -> None:
        """Stop to measure in the background."""
        if self._background is not None:
            self._background.cancel()

    async def quiet(self) -> None:
        """Stop to measure in the background, and return once nothing of it is left."""
        self.close()
        if self._background is not None:
            await asyncio.wait([self._background], timeout=QUIET_SECONDS)

    async def _measure(self, device: str, **terms: Any) -> Figures:
        figures: Figures = {}
        await self._idle()
        members = by_host(self.scheduler.workers)
        try:
            for part in PARTS:
                figures |= await self._undisturbed(self._part, part, members, terms)
            figures |= await self._undisturbed(_dask, self.scheduler, device)
        except Exception as error:  # predictions have defaults for the rest
            logger.info("the cluster is not measured further: %r", error)
        launch = figures.pop("launch_seconds", None)
        if launch is not None:
            figures["step_seconds"] = launch + STEP_SECONDS
        return figures

    async def _undisturbed(
        self, measure: Callable[..., Awaitable[Figures]], *arguments: Any
    ) -> Figures:
        """Measure until no task ran at the end: whatever disturbs a measurement makes it slower."""
        figures = await measure(*arguments)
        while self._busy():
            await self._idle()
            figures = await measure(*arguments)
        return figures

    async def _idle(self) -> None:
        """Return when no task has run for some time."""
        looks = 0
        while looks < QUIET_LOOKS:
            looks = 0 if self._busy() else looks + 1
            await asyncio.sleep(PAUSE)

    def _busy(self) -> bool:
        return any(ws.processing for ws in self.scheduler.workers.values())

    async def _part(self, part: str, members: tuple[str, ...], terms: dict[str, Any]) -> Figures:
        """Have all members measure a part at the same time; the slowest counts.

        Raises
        ------
        OSError
            If a member is lost, or there is none.
        TimeoutError
            If one does not answer.
        """
        if not members:
            raise OSError("there is no worker")
        loop = asyncio.get_running_loop()
        self._answers = {(part, member): loop.create_future() for member in members}
        self.epochs.connect(members, **terms, part=part, hosts=member_hosts(members))
        answers = asyncio.gather(*self._answers.values())
        return slowest(await asyncio.wait_for(answers, PATIENCE))


def slowest(answers: Iterable[Figures]) -> Figures:
    """Return the worst of each figure: a long time, and a low rate.

    A rank alone on its host lacks the figures within a host.
    """
    figures: Figures = {}
    for name, value in chain.from_iterable(answer.items() for answer in answers):
        worse = max if name.endswith(("seconds", "latency")) else min
        figures[name] = worse(value, figures.get(name, value))
    return figures


async def _dask(scheduler: Scheduler, device: str) -> Figures:
    """Measure Dask's tasks, round trips and transfers, by tasks of a client."""
    client: Any = Client(
        scheduler.address, security=scheduler.security, asynchronous=True, set_as_default=False
    )
    async with client:
        workers = list(scheduler.workers)
        return await asyncio.wait_for(_dask_figures(client, workers, device), PATIENCE)


async def _dask_figures(client: Client, workers: list[str], device: str) -> Figures:
    def tasks(count: int) -> list[Future[Any]]:
        """Submit so many tasks that read blocks, and one that reads them all.

        Tasks that read nothing, or few blocks, would wait in the scheduler for a free thread.
        """
        blocks, name = (f"{MEASUREMENT}-{uuid4().hex}" for _ in range(2))
        graph: dict[Any, Any] = {(blocks, i): (_nothing, i) for i in range(BLOCKS)}
        graph |= {(name, i): (_nothing, (blocks, i % BLOCKS)) for i in range(count)}
        graph[name] = (_nothing, [(name, i) for i in range(count)])
        return client.get(graph, [name], sync=False)

    def on(at: int, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        worker, key = workers[at % len(workers)], f"{MEASUREMENT}-{uuid4().hex}"
        return client.submit(function, *arguments, workers=[worker], key=key)

    def hops(count: int) -> list[Future[Any]]:
        last = on(0, _nothing, 0)
        for i in range(count):
            last = on(i + 1, _nothing, last)
        return [last]

    async def done(futures: list[Future[Any]]) -> float:
        """Return the seconds until tasks are done."""
        begin = perf_counter()
        # distributed.wait would ask the user's client, and block this event loop for its answer
        await asyncio.gather(*(future.exception() for future in futures))
        return perf_counter() - begin

    async def best(submit: Callable[[int], list[Future[Any]]], count: int) -> float:
        return min([await done(submit(count)) for _ in range(REPETITIONS)])

    few, many = await best(tasks, BLOCKS), await best(tasks, BLOCKS + TASKS)
    one, last = await best(hops, 0), await best(hops, HOPS)
    figures = {"task_seconds": (many - few) / TASKS, "round_trip_seconds": (last - one) / HOPS}
    if len(workers) > 1:
        times = []
        for _ in range(REPETITIONS):  # with new blocks: workers keep those that they received
            blocks = [on(i, _block, BLOCK_BYTES[device], device) for i in range(len(workers))]
            await done(blocks)
            moved = [on(i + 1, _nothing, block) for i, block in enumerate(blocks)]
            times.append(await done(moved))
        figures["dask_bandwidth"] = BLOCK_BYTES[device] / max(min(times) - one, 1e-6)
    return figures


def _nothing(value: Any) -> None:
    """Do nothing with a value, which Dask brings to this worker."""


def _block(nbytes: int, device: str) -> Any:
    """Return a block of the kind that Dask arrays have on a device."""
    if device == "cuda":
        import cupy

        return cupy.ones(nbytes, "uint8")
    return np.ones(nbytes, "uint8")
