"""One attempt at a gang, on the scheduler."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import cloudpickle
from distributed.protocol.serialize import ToPickle

from dask_dgpu.errors import GangError
from dask_dgpu.runtime.again import Tried
from dask_dgpu.runtime.background import in_background
from dask_dgpu.runtime.package import Package
from dask_dgpu.runtime.program import Launch, Program
from dask_dgpu.runtime.scheduler.blocks import block_read, worker_with
from dask_dgpu.runtime.scheduler.members import by_host, member_hosts
from dask_dgpu.runtime.scheduler.planned import Planned
from graph_opt.dask_graph.plain import Plain
from graph_opt.model.layout import dealt

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

    from dask_dgpu.runtime.scheduler.direct import Stored

Key = Any
Token = tuple[Key, str]
"""A block's key, and its worker."""


@dataclass
class Run:
    """An attempt at a gang, which the key of its ``gang`` task identifies.

    ``staged`` has for each input its blocks in row-major order: the ``stage`` task's key and the
    block's worker. Once the run is planned, ``placed`` has the rank of each block of the result,
    ``collectives`` the plan of each collective by its number, ``package`` the program and the
    plans as members get them, and ``tokens`` those in its text. The second run of a program that
    ran out of memory is planned with ``less``; ``tried`` has the bytes of both.

    A run without tasks has the keys of the blocks themselves in ``staged``, and a ``holder``: the
    member that runs the ``gang`` task as far as Dask knows. ``stored`` are the results in the
    memory of workers, by the keys of their tasks.
    """

    key: Key
    run_id: int
    launch: Launch
    staged: list[list[Token]]
    members: tuple[str, ...] = ()
    epoch: str | None = None
    task: asyncio.Future[None] | None = None
    placed: dict[Key, int] = field(default_factory=dict)
    collectives: Mapping[int, Any] = field(default_factory=dict)
    package: Package = field(default_factory=lambda: Package(b"", b"", b"", b""))
    tokens: bytes = b""
    less: bool = False
    tried: Tried | None = None
    holder: str | None = None
    stored: dict[Key, Stored] = field(default_factory=dict)
    finished: bool = False
    starts_over: bool = False
    outcome: asyncio.Future[dict[str, Any]] = field(default_factory=asyncio.Future)

    @property
    def program(self) -> Program:
        """The program of the gang."""
        return self.launch.program

    @cached_property
    def holders(self) -> set[str]:
        """The workers with staged blocks."""
        return {worker for tokens in self.staged for _, worker in tokens}

    @cached_property
    def awaited(self) -> set[str]:
        """The members that have not finished."""
        return set(self.members)

    @cached_property
    def ranks(self) -> dict[str, int]:
        """The rank of each member."""
        return {member: rank for rank, member in enumerate(self.members)}

    @cached_property
    def likely(self) -> dict[Key, str]:
        """The likely worker of each block of the result: plans deal blocks out if nothing moves."""
        return {
            (name, *index): self.members[rank]
            for name, blocks in self.launch.outputs
            for index, rank in zip(blocks, dealt(len(blocks), len(self.members)), strict=True)
        }

    def rank(self, worker: str) -> int | None:
        """Return the rank of a worker, if it is a member."""
        return self.ranks.get(worker)

    def worker_of(self, block: Key) -> str:
        """Return the worker that computes a block of the result."""
        return self.members[self.placed[block]]

    def choose_members(self, scheduler: Scheduler) -> None:
        """Choose all workers that the gang's task may use, and those with its blocks.

        A paused worker, usually one that is short of memory, gets no further blocks. Ranks are
        numbered host by host.
        """
        gang = scheduler.tasks[self.key]
        valid = scheduler.valid_workers(gang)
        if valid is None or (gang.loose_restrictions and not valid):
            allowed = set(scheduler.workers)
        else:
            allowed = {ws.address for ws in valid}
        running = {ws.address for ws in scheduler.running}
        chosen = self.holders | ((allowed & running) or allowed)
        found = [address for address in scheduler.workers if address in chosen]
        self.members = by_host((*found, *(self.holders - set(found))))

    def on_blocks(self, scheduler: Scheduler) -> Run | None:
        """Return this run on its blocks where they are now, ``None`` if it cannot run there."""
        staged: list[list[Token]] = []
        for tokens in self.staged:
            blocks = [ts for key, _ in tokens if (ts := scheduler.tasks.get(key)) is not None]
            found = [(ts.key, worker) for ts in blocks if (worker := worker_with(ts)) is not None]
            if len(found) < len(tokens):
                return None
            staged.append(found)
        run = Run(self.key, self.run_id, self.launch, staged, holder=self.holder)
        run.choose_members(scheduler)
        alive = all(member in scheduler.workers for member in run.members)
        return run if alive and run.holder in run.members else None

    def stage_keys(self) -> list[Key]:
        """Return the keys of all input blocks, as in ``staged``."""
        return [key for tokens in self.staged for key, _ in tokens]

    async def plan(self, kept: MutableMapping[Any, Planned]) -> None:
        """Plan the program, in the background unless an equal one was planned for these places."""
        tokens, hosts, size = self.launch.tokens, member_hosts(self.members), len(self.members)
        work = partial(Planned.of, self.launch, hosts, self.owners, size, less=self.less)
        if tokens is None:
            planned = await in_background(work)
        else:
            key = self.program.digest, self.program.room, self.less, hosts, size, *self.owners
            if key not in kept:
                kept[key] = await in_background(work)
            planned = kept[key]
        self.tokens = planned.tokens if tokens is None else b"".join(tokens)
        self.placed = planned.placed(self.launch)
        self.collectives = planned.collectives
        self.package = planned.package
        if planned.tried is not None:
            self.tried = planned.tried._replace(name=self.launch.title)

    @cached_property
    def owners(self) -> tuple[tuple[int, ...], ...]:
        """For each input the rank of each block."""
        return tuple(tuple(self.ranks[worker] for _, worker in tokens) for tokens in self.staged)

    def launch_message(self, rank: int, epoch: str, profiled: bool) -> dict[str, Any]:
        """Return the message that starts a member, without the text of the program."""
        member = self.members[rank]
        blocks = [
            [
                (index, key)
                for index, (key, worker) in zip(value.indices(), tokens, strict=True)
                if worker == member
            ]
            for value, tokens in zip(self.program.inputs, self.staged, strict=True)
        ]
        return {
            "op": "dgpu-launch",
            "key": self.key,
            "run_id": self.run_id,
            "rank": rank,
            "size": len(self.members),
            "epoch": epoch,
            "program": self.package.program,
            "digest": self.package.digest,
            "tokens": self.tokens,
            "names": self.launch.names,
            "blocks": blocks,
            "in_memory": self.holder is not None,
            "holds": self.holder == member,
            "profiled": profiled,
            "tried": self.tried,
        }

    def package_message(self) -> dict[str, Any]:
        """Return the message with the program and its plans, for members without them."""
        package = {"text": self.package.text, "plans": self.package.plans}
        return {"op": "dgpu-package", "key": self.key, "run_id": self.run_id, **package}

    def give_up_message(self, reason: str) -> dict[str, Any]:
        """Return the message that stops a member."""
        return {
            "op": "dgpu-give-up",
            "key": self.key,
            "run_id": self.run_id,
            "epoch": self.epoch,
            "reason": reason,
        }

    def finish(self) -> None:
        """Let the ``gang`` task return: all ranks are done."""
        self.finished = True
        self._end({"outcome": "finished", "run_id": self.run_id})

    def restart(self) -> None:
        """Let the ``gang`` task run again: the attempt is void."""
        self._end({"outcome": "restarted"})

    def fail(self, error: GangError) -> None:
        """Let the ``gang`` task raise."""
        self._end({"outcome": "failed", "error": pickle.dumps(error)})

    def leave(self, plain: Plain | bytes) -> None:
        """Let the ``gang`` task run Dask's own tasks; no rank does more."""
        self.finished = True
        self._end({"outcome": "plain", "plain": plain, "run_id": self.run_id})

    async def answer(self, scheduler: Scheduler) -> dict[str, Any]:
        """Wait for the end; return the answer to the worker of the gang's task."""
        await asyncio.wait([self.outcome])
        answer = self.outcome.result()
        if "plain" not in answer:
            return answer
        task = scheduler.tasks.get(self.key)
        if task is None:  # cancelled meanwhile
            return {"outcome": "restarted"}
        workers = sorted(task.worker_restrictions or ())
        given = [block_read(scheduler.tasks[stage]) for stage in self.stage_keys()]
        plain = answer["plain"]
        if not isinstance(plain, bytes):
            plain = await in_background(partial(cloudpickle.dumps, plain))
        return answer | {"plain": plain, "given": ToPickle(given), "workers": workers}

    def _end(self, answer: dict[str, Any]) -> None:
        if not self.outcome.done():
            self.outcome.set_result(answer)
