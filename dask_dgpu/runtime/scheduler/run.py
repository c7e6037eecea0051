"""Runs: attempts at gangs, their members and epochs, and the watch over their progress.

An epoch is a set of workers that share a communicator.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from hashlib import blake2b
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

import cloudpickle
from distributed.comm.addressing import parse_address, parse_host_port
from distributed.protocol.serialize import ToPickle
from distributed.utils import offload

from dask_dgpu.errors import GangError
from dask_dgpu.runtime.again import Tried, with_less
from dask_dgpu.runtime.execute import Span
from dask_dgpu.runtime.plans import Owners, plans
from dask_dgpu.runtime.program import Launch, Program
from dask_dgpu.runtime.scheduler.states import Stored, block_read, send, worker_with
from graph_opt.model.cost import Hosts, hosts_of
from graph_opt.model.layout import dealt

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

    from dask_dgpu.comm.bootstrap import Transport

Key = Any
Report = dict[str, Any]

Token = tuple[Key, str]
"""A block's key, and its worker."""

Ports = tuple[int, int] | None
"""The first and the last port on which ranks may listen, ``None`` for any."""

Terms = tuple[tuple[str, ...], str, float, Ports]
"""What identifies a communicator: members, transport, seconds to connect, ports."""

Outcome = Literal["finished", "restarted", "failed", "plain"]

KEPT_EPOCHS = 4
"""Number of communicators that a worker keeps, besides those that runs use."""

LONGEST_INTERVAL = 5.0
"""Most seconds between two looks at a run."""


def by_host(members: Iterable[str]) -> tuple[str, ...]:
    """Order addresses host by host: hosts and the members of each in their present order."""
    hosts: dict[str, list[str]] = {}
    for member in members:
        hosts.setdefault(host_in(member), []).append(member)
    return tuple(member for members in hosts.values() for member in members)


@lru_cache(maxsize=64)
def member_hosts(members: tuple[str, ...]) -> Hosts:
    """Return the number of members on each host, empty for one host; see :func:`hosts_of`."""
    return hosts_of([host_in(member) for member in members])


def host_in(address: str) -> str:
    """Return the host in an address, of a protocol that this process may lack."""
    _, location = parse_address(address)
    host: str = parse_host_port(location.partition("/")[0], 0)[0]  # inproc has a path
    return host


@dataclass(frozen=True)
class Planned:
    """A program as its members get it, for ranks that have its inputs in certain places.

    Each gets what is ``sent`` only once, the program's text and its plans, and then the ``digest``.
    Functions may have numbers that differ in each call of the same code, or a user may pass them a
    name: in the text these ``tokens`` have numbers, so equal programs have equal texts.
    ``collectives`` are their plans by the numbers of their results; ``ranks`` are those of all
    blocks of the results. A program that is ``tried`` again was planned with less memory.
    """

    digest: bytes
    sent: Mapping[str, bytes]
    tokens: bytes
    collectives: Mapping[int, Any]
    ranks: tuple[int, ...]
    tried: Tried | None = None

    @classmethod
    def of(
        cls, launch: Launch, hosts: Hosts, owners: Owners, size: int, *, less: bool = False
    ) -> Planned:
        """Plan a program, with ``less`` memory for its second run; may take seconds."""
        program, tried = launch.program, None
        if hosts != program.machine.hosts:
            program = replace(program, machine=replace(program.machine, hosts=hosts))
        if less:
            planned, tried = with_less(program, launch.title, owners, size)
        else:
            planned = plans(program, owners, size)
        ranks = tuple(rank for _, rank in planned.results(program))
        text, tokens = program.text
        digest = blake2b(planned.payload, digest_size=16, key=program.digest).digest()
        sent = {"text": text, "plans": planned.payload}
        return cls(digest, sent, tokens, planned.collectives, ranks, tried)


@dataclass(eq=False)
class Run:
    """An attempt at a gang, which the key of its ``gang`` task identifies.

    ``staged`` has for each input its blocks in row-major order: the ``stage`` task's key and the
    block's worker. The second run of a program that ran out of memory is planned with ``less``.

    A run without tasks has the keys of the blocks themselves in ``staged``, and a ``holder``: the
    member that runs the ``gang`` task as far as Dask knows. It may wait for ``missing`` blocks.
    ``stored`` are the results in the memory of workers, by the keys of their tasks, ``numbers``
    those that ``compute`` returns. ``spans`` are the steps of the members that have finished,
    ``details`` those of operations, pickled.
    """

    key: Key
    run_id: int
    launch: Launch
    staged: list[list[Token]]
    members: tuple[str, ...] = ()
    epoch: str | None = None
    task: asyncio.Future[None] | None = None
    planned: Planned = field(init=False)
    less: bool = False
    holder: str | None = None
    missing: set[Key] = field(default_factory=set)
    stored: dict[Key, Stored] = field(default_factory=dict)
    numbers: dict[Key, Any] = field(default_factory=dict)
    spans: dict[str, list[Span]] = field(default_factory=dict)
    details: dict[str, bytes] = field(default_factory=dict)
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
    def placed(self) -> dict[Key, int]:
        """The rank of each block of the result, before it is planned the likely one.

        Plans deal blocks out if nothing moves.
        """
        outputs, size = self.launch.outputs, len(self.members)
        return self._by_block(rank for _, blocks in outputs for rank in dealt(len(blocks), size))

    def _by_block(self, ranks: Iterable[int]) -> dict[Key, int]:
        names, outputs = self.launch.names, self.program.outputs
        blocks = [(names[number], *index) for number, indices in outputs for index in indices]
        return dict(zip(blocks, ranks, strict=True))

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
        members = [address for address in scheduler.workers if address in chosen]
        self.members = by_host((*members, *(self.holders - set(members))))

    def on_blocks(self, scheduler: Scheduler) -> Run | None:
        """Return this run on its blocks where they are now, ``None`` if it cannot run there."""
        staged: list[list[Token]] = []
        for tokens in self.staged:
            blocks = [ts for key, _ in tokens if (ts := scheduler.tasks.get(key)) is not None]
            places = [(ts.key, worker) for ts in blocks if (worker := worker_with(ts)) is not None]
            if len(places) < len(tokens):
                return None
            staged.append(places)
        run = Run(self.key, self.run_id, self.launch, staged, holder=self.holder)
        run.choose_members(scheduler)
        alive = all(member in scheduler.workers for member in run.members)
        return run if alive and run.holder in run.members else None

    def stage_keys(self) -> list[Key]:
        """Return the keys of all input blocks, as in ``staged``."""
        return [key for tokens in self.staged for key, _ in tokens]

    async def plan(self, kept: MutableMapping[Any, Planned]) -> None:
        """Plan the program, in a thread unless an equal one was planned for these places."""
        hosts, size = member_hosts(self.members), len(self.members)
        work = partial(Planned.of, self.launch, hosts, self.owners, size, less=self.less)
        if self.launch.tokens is None:
            self.planned = await offload(work)
        else:
            key = self.program.digest, self.program.room, self.less, hosts, size, *self.owners
            if key not in kept:
                kept[key] = await offload(work)
            self.planned = kept[key]
        self.placed = self._by_block(self.planned.ranks)

    @cached_property
    def owners(self) -> tuple[tuple[int, ...], ...]:
        """For each input the rank of each block."""
        return tuple(tuple(self.ranks[worker] for _, worker in tokens) for tokens in self.staged)

    def message(self, op: str, **fields: Any) -> dict[str, Any]:
        """Return a message about this run."""
        return {"op": op, "key": self.key, "run_id": self.run_id, **fields}

    def launch_message(self, rank: int, **fields: Any) -> dict[str, Any]:
        """Return the message that starts a member of the planned run."""
        member, planned, tokens = self.members[rank], self.planned, self.launch.tokens
        blocks = [
            [
                (index, key)
                for index, (key, worker) in zip(places, tokens, strict=True)
                if worker == member
            ]
            for places, tokens in zip(self.program.places, self.staged, strict=True)
        ]
        return self.message(
            "dgpu-launch",
            rank=rank,
            size=len(self.members),
            epoch=self.epoch,
            digest=planned.digest,
            tokens=planned.tokens if tokens is None else tokens,
            names=self.launch.names,
            blocks=blocks,
            in_memory=self.holder is not None,
            holds=self.holder == member,
            tried=planned.tried and planned.tried._replace(name=self.launch.title),
            **fields,
        )

    @property
    def finished(self) -> bool:
        """Whether the blocks of the result are computed, or Dask computes them."""
        return self.outcome.done() and self.outcome.result()["outcome"] in ("finished", "plain")

    def end(self, outcome: Outcome, **answer: Any) -> None:
        """Let the ``gang`` task return, run again, raise, or run Dask's own tasks."""
        if not self.outcome.done():
            self.outcome.set_result({"outcome": outcome, "run_id": self.run_id, **answer})

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
            plain = await offload(cloudpickle.dumps, plain)
        return answer | {"plain": plain, "given": ToPickle(given), "workers": workers}


class Epochs:
    """The most recently used epochs of a cluster whose members are all alive.

    An epoch's name is never used twice, so members of an abandoned epoch and of its successor
    cannot connect. Members meet at their stores, whose values travel over the scheduler: over
    Dask's own connections, and without the help of a member that may be lost. When an epoch is
    discarded, its members leave it. ``runs`` are the current and the finished ones.
    """

    def __init__(self, scheduler: Scheduler, runs: Mapping[Any, Run]) -> None:
        self.scheduler = scheduler
        self._runs = runs
        self._kept: dict[Terms, str] = {}  # names; the most recently used comes last
        self._names = count()

    def get(
        self,
        members: tuple[str, ...],
        transport: Transport,
        timeout: float,
        ports: Ports = None,
    ) -> str:
        """Return the name of the epoch on these terms.

        Raises
        ------
        OSError
            If a member is lost.
        """
        if any(member not in self.scheduler.workers for member in members):
            raise OSError("a member is lost")
        terms = members, transport, timeout, ports
        name = self._kept.pop(terms, None) or f"{self.scheduler.id}-{next(self._names)}"
        self._kept[terms] = name
        self._discard_idle()
        return name

    def share(self, epoch: str, key: str, value: bytes, worker: str) -> None:
        """Pass a value that a member has set on to the stores of the others.

        Nobody misses one: the epoch is announced to all members before any of them sets a value.
        """
        for terms, name in self._kept.items():
            if name == epoch and worker in terms[0]:
                message = {"op": "dgpu-shared", "epoch": epoch, "key": key, "value": value}
                send(self.scheduler, [term for term in terms[0] if term != worker], message)

    def connect(
        self, members: tuple[str, ...], *, part: str | None = None, hosts: Hosts = (), **terms: Any
    ) -> None:
        """Make the members of an epoch connect now, and measure a part of their rates.

        Raises
        ------
        OSError
            If a member is lost.
        """
        self._tell(members, terms, op="dgpu-warm-up", part=part, hosts=hosts)

    def serve(self, caller: str, members: tuple[str, ...], **terms: Any) -> None:
        """Let the members serve a client's calls, after the gangs that are launched by now.

        Raises
        ------
        OSError
            If a member is lost.
        """
        self._tell(members, terms, op="dgpu-session", caller=caller)

    def _tell(self, members: tuple[str, ...], terms: dict[str, Any], **message: Any) -> None:
        """Send a message to the members of an epoch, each with its rank."""
        message |= {"epoch": self.get(members, **terms), "size": len(members), **terms}
        for rank, member in enumerate(members):
            send(self.scheduler, [member], message | {"rank": rank})

    def discard(self, name: str, reason: str) -> None:
        """Discard an epoch."""
        self._discard([terms for terms, kept in self._kept.items() if kept == name], reason)

    def remove_worker(self, worker: str) -> None:
        """Discard all epochs of a lost worker."""
        self._discard([terms for terms in self._kept if worker in terms[0]], "a member is lost")

    def relieve(self, worker: str) -> None:
        """Discard the idle epochs of a worker that is short of memory, but the last one used."""
        used, own = self._used(), [terms for terms in self._kept if worker in terms[0]]
        idle = [terms for terms in own[:-1] if self._kept[terms] not in used]
        self._discard(idle, "a member is short of memory")

    def clear(self) -> None:
        """Discard all epochs."""
        self._discard(list(self._kept), "the cluster restarts")

    def _discard(self, found: Iterable[Terms], reason: str) -> None:
        for terms in found:
            message = {"op": "dgpu-leave", "epoch": self._kept.pop(terms), "reason": reason}
            send(self.scheduler, terms[0], message)

    def _used(self) -> set[str | None]:
        """Return the names of the epochs in which runs have not ended."""
        return {run.epoch for run in self._runs.values() if not run.outcome.done()}

    def _discard_idle(self) -> None:
        """Discard the least recently used epochs of workers that keep too many."""
        counts = Counter(member for members, *_ in self._kept for member in members)
        used = self._used()
        *older, _ = self._kept.items()
        for terms, name in older:
            members = terms[0]
            crowded = any(counts[member] > KEPT_EPOCHS for member in members)
            if crowded and name not in used:
                counts.subtract(members)
                self._discard([terms], "others were used more recently")


async def watch(
    scheduler: Scheduler,
    run: Run,
    runs: Mapping[Any, Run],
    fail: Callable[[Run, GangError], None],
) -> None:
    """Poll the members of a run until it ends; call ``fail`` if it makes no progress.

    Progress means that a rank reports a new step; a program may take any time. A long function of
    a user counts as progress, because Dask would wait for it too, but it does not excuse another
    rank that does not answer: the function may wait for that rank's device. A run whose worker is
    still in an earlier one of ``runs`` is not stuck, because that run is watched itself.

    Transports wait for other ranks without a limit. So only this ends a hang: ``fail`` makes the
    members abort their communicators.
    """
    timeout = run.program.limits.timeout
    interval = min(timeout / 4, LONGEST_INTERVAL)
    clock = asyncio.get_running_loop().time
    seen: dict[str, Report] = {}
    moved = clock()
    answered = dict.fromkeys(run.members, moved)
    while True:
        await asyncio.wait([run.outcome], timeout=interval)
        if run.outcome.done():
            return
        awaited = sorted(run.awaited)
        reports = await asyncio.gather(*(look(scheduler, run, w, interval) for w in awaited))
        now = {worker: r for worker, r in zip(awaited, reports, strict=True) if r}
        watched = {(run.key, run.run_id) for run in runs.values() if not run.outcome.done()}
        if any(r["behind"] in watched or _moved(seen.get(w), r) for w, r in now.items()):
            moved = clock()
        seen |= now
        answered.update(dict.fromkeys(now, clock()))
        since = min([moved, *(answered[worker] for worker in awaited)])
        if clock() - since >= timeout:
            if not run.outcome.done():
                fail(run, _blame(run, awaited, now, timeout))
            return


async def look(scheduler: Scheduler, run: Run, worker: str, limit: float) -> Report | None:
    """Return the progress of a member, as :attr:`Job.report` has it, within ``limit`` seconds.

    ``None`` means no answer. ``calling`` and ``at_work`` describe the worker's current job, and
    ``behind`` names it if it is not this run's.
    """
    if worker not in scheduler.workers:
        return None
    try:
        running = await asyncio.wait_for(scheduler.rpc(worker).dgpu_report(), limit)
    except Exception:  # any reason not to answer
        return None
    for report in running:
        if (report["key"], report["run_id"]) == (run.key, run.run_id):
            # a worker runs its jobs in the order in which they were launched
            first = running[0] if report["phase"] == "queued" else report
            at_work = (first["run_id"], first["done"], first["phase"])
            behind = (first["key"], first["run_id"]) if first is not report else None
            return {**report, "calling": first["calling"], "at_work": at_work, "behind": behind}
    return {
        "phase": "finished",
        "done": -1,
        "calling": False,
        "at_work": (run.run_id, -1, "finished"),
        "behind": None,
        "steps": len(run.program.nodes),
    }


def _moved(before: Report | None, now: Report) -> bool:
    return now["calling"] or before is None or before["at_work"] != now["at_work"]


def _blame(run: Run, awaited: list[str], now: dict[str, Report], timeout: float) -> GangError:
    """Blame a member that does not answer, otherwise the one with least progress."""
    silent = [worker for worker in awaited if worker not in now]
    if silent:
        reason = f"{run.launch.title}: a rank has not answered for {timeout:g} s"
        return GangError(reason, run.rank(silent[0]), silent[0], "program")
    worker = min(awaited, key=lambda worker: int(now[worker]["done"]))
    reason = f"{run.launch.title}: no rank has made progress for {timeout:g} s"
    return GangError(reason, run.rank(worker), worker, now[worker]["phase"])
