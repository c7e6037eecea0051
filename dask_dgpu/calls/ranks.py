"""The client's side of calls: connections to the ranks, and the arrays that they keep.

A call is a message to each rank, and returns at once. If a rank is lost, or a call fails, all
connections are closed, and the ranks free all arrays. Then arrays are computed again as they are
needed: each knows its call, and that its arguments, back to arrays that Dask's scheduler knows.
"""

from __future__ import annotations

import asyncio
import math
import pickle
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from dask.array.core import Array
from dask.core import flatten
from distributed import Client, Future, futures_of, wait

from dask_dgpu.calls.trace import SMALL, Loop, Places, Program
from dask_dgpu.errors import GangError, UndeclaredError
from dask_dgpu.runtime.failure import opened
from dask_dgpu.runtime.worker.calls import Message, Outbox

if TYPE_CHECKING:
    from distributed.comm.core import Comm as Connection

MOST_CALLS = 64
"""Number of calls that the ranks may not have finished; a further one waits."""

MOST_REPEATED = 10_000
"""Number of the last calls that can be repeated after a loss."""

SOURCES = 1 / 8
"""Fraction of the memory of all ranks for arguments of calls that can be repeated."""

FREE_SECONDS = 0.05
"""Freed arrays wait so long for a call with which they are sent."""

LOST_SECONDS = 0.2
"""Seconds between two attempts to connect after a loss."""

CONNECT_SECONDS = 10.0
"""Most seconds for a connection to a rank."""


@dataclass(eq=False)
class Held:
    """An array on the ranks, by its number there, which is valid in one generation.

    ``owners`` are the ranks of its blocks. It comes from a ``source`` in Dask's memory, or it is
    the result at a place of a call. A ``spent`` one has been donated. ``blocks`` are those of a
    small result, which have come with the answer.
    """

    ranks: Ranks
    number: int
    generation: int
    owners: tuple[int, ...]
    source: Array | None = None
    call: Call | None = None
    place: int = 0
    spent: bool = False
    blocks: dict[Any, Any] = field(default_factory=dict)

    def __del__(self) -> None:
        if self.generation == self.ranks.generation:
            self.ranks.free(self.number)


@dataclass(eq=False)
class Question:
    """Messages to the ranks that so many ``awaited`` ranks have to answer; ``lost`` if they cannot.

    It has failed if there is an ``error``. ``nbytes`` of keys are what they have stored for Dask.
    """

    awaited: int = 0
    ended: threading.Event = field(default_factory=threading.Event)
    lost: bool = False
    error: BaseException | None = None
    nbytes: dict[Any, int] = field(default_factory=dict)

    def end(self, *, lost: bool = False) -> None:
        """Let those who wait go on."""
        self.lost = lost
        self.ended.set()


@dataclass(eq=False)
class Call(Question):
    """A call of a program, or a loop of calls, of which so many are ``done`` at the end.

    Its ``inputs`` are sources, or other calls with the places of their results, ``None`` if it
    cannot be repeated. ``made`` are those of its results that are still referred to.
    """

    program: Program = field(kw_only=True)
    tokens: bytes = field(kw_only=True)
    loop: Loop = field(kw_only=True)
    inputs: tuple[Held | tuple[Call, int], ...] | None = field(kw_only=True)
    made: list[weakref.ref[Held]] = field(default_factory=list)
    losses: int = 0
    done: int = 0

    @property
    def makers(self) -> list[tuple[Call, int]]:
        """The calls whose results it reads, with their places."""
        return [each for each in self.inputs or () if not isinstance(each, Held)]


class Ranks:
    """The workers of a client's cluster as ranks that it calls; they connect on these ``terms``."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.terms: Mapping[str, Any] = {}
        self.token = uuid4().hex[:16]  # half of a token of Dask's, for the names of results
        self.scheduler: str = client.scheduler_info()["id"]
        loop: Any = client.loop
        self._asyncio: asyncio.AbstractEventLoop = loop.asyncio_loop
        self._lock = threading.RLock()  # of callers
        self._state = threading.Lock()  # held for moments
        self._slots = threading.Semaphore(MOST_CALLS)
        self._numbers = count(1)
        self.generation = 0
        self._members: tuple[str, ...] = ()
        self._connections: list[Connection] = []
        self._outboxes: list[Outbox] = []
        self._waiting: list[Message] = []
        self._sending = False
        self._wants_end = False
        self._is_open = False
        self._sessions = 0
        self._name = ""
        self._known: set[bytes] = set()
        self._freed: deque[int] = deque()
        self._asked: dict[int, Question] = {}
        self._history: deque[tuple[Call, float]] = deque()  # with the bytes of new sources
        self._source_bytes = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    # of any thread

    def free(self, number: int) -> None:
        """Free an array on the ranks soon."""
        self._freed.append(number)
        if len(self._freed) == 1:
            self._soon(self._asyncio.call_later, FREE_SECONDS, self._start)

    def _soon(self, function: Callable[..., Any], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the client is closed, and its connections with it
            self._asyncio.call_soon_threadsafe(function, *arguments)

    # of callers

    def adopt(self, array: Array) -> Held:
        """Return an array of Dask's as one of the ranks; it is computed now."""
        with self._lock:
            copy = Array(array.dask, array.name, array.chunks, meta=array._meta)
            source = self.client.persist(copy)
            held = Held(self, 0, -1, (), source)
            self._place(held)
            return held

    def _place(self, held: Held) -> None:
        """Let the ranks keep the blocks of a source: where they are, or on the first."""
        source = held.source
        assert source is not None
        keys = [*flatten(source.__dask_keys__())]
        while True:
            futures = futures_of(source)
            wait(futures)
            for future in futures:
                if future.status != "finished":
                    future.result()
            self._connect()
            if source.nbytes <= SMALL:
                self.client.replicate(futures, workers=self._members[:1])
            scheduler: Any = self.client.scheduler
            places = self.client.sync(scheduler.who_has, keys=keys)
            ranks = {member: rank for rank, member in enumerate(self._members)}
            found = [
                min((ranks[w] for w in places.get(k, ()) if w in ranks), default=-1) for k in keys
            ]
            if -1 not in found:
                break
            time.sleep(LOST_SECONDS)  # lost meanwhile, or on a new worker
            self._lose()
        blocks: dict[str, list[Any]] = {}
        for key, rank in zip(keys, found, strict=True):
            blocks.setdefault(self._members[rank], []).append((key[1:], key))
        held.owners = tuple(found)
        held.number, held.generation = next(self._numbers), self.generation
        self._send(held.generation, {"op": "adopt", "array": held.number, "blocks": blocks})

    def call(
        self,
        program: Program,
        inputs: Sequence[Held],
        tokens: bytes,
        loop: Loop,
        donated: Iterable[Held] = (),
    ) -> list[Held]:
        """Call a program, in a loop; return its results, which may not exist yet.

        Raises
        ------
        GangError
            If an argument was donated before, or is lost and cannot be computed again.
        """
        with self._lock:
            if any(held.spent for held in inputs):
                raise GangError("an argument was donated to an earlier call")
            lineage = tuple(h if h.call is None else (h.call, h.place) for h in inputs)
            call = Call(program=program, tokens=tokens, inputs=lineage, loop=loop)
            found = self._submit(call, inputs, donated)
            self._remember(call)
            return found

    def _remember(self, call: Call) -> None:
        """Keep what it takes to repeat the last calls, in a part of the memory of all ranks."""
        last = self._history[-1][0].inputs if self._history else None
        sources = {each for each in call.inputs or () if isinstance(each, Held)} - {*(last or ())}
        nbytes = sum(each.source.nbytes for each in sources if each.source is not None)
        self._history.append((call, nbytes))
        self._source_bytes += nbytes
        room = call.program.launch.program.room
        most = math.inf if room is None else room * len(self._members) * SOURCES
        while len(self._history) > MOST_REPEATED or self._source_bytes > most:
            first, freed = self._history.popleft()
            first.inputs = None
            self._source_bytes -= freed

    def _submit(
        self, call: Call, inputs: Sequence[Held], donated: Iterable[Held] = ()
    ) -> list[Held]:
        """Send a call to the ranks, whose inputs are placed or computed again if need be."""
        program, loop, spent = call.program, call.loop, [*donated]
        while True:
            self._connect()
            generation, all_members = self.generation, self._members
            self._renew(inputs, generation)
            owners = tuple(held.owners for held in inputs)
            alone = program.is_tiny and not any(map(any, owners))
            members = all_members[:1] if alone else all_members
            stages = program.stages(loop, owners, members)
            after = stages.after(loop.most)
            made = self._results(call, after, generation)
            fresh = {plan.digest: plan.sent for plan in stages.plans}
            messages: list[Message] = [
                {"op": "open", "digest": digest, **sent, **program.facts}
                for digest, sent in fresh.items()
                if digest not in self._known
            ]
            messages.append(
                {
                    "op": "call",
                    "digests": [plan.digest for plan in stages.plans],
                    "back": stages.back,
                    "tokens": call.tokens,
                    "ranks": len(members),
                    "reads": [held.number for held in inputs],
                    "spent": [held.number for held in spent],
                    "makes": [held.number for held in made],
                    "feeds": loop.feeds,
                    "carry": loop.carry,
                    "small": loop.small,
                    "most": loop.most,
                    "waits": loop.waits,
                }
            )
            small = [made[place].owners for place in loop.small]
            call.awaited = len(members) if loop.waits else len({0}.union(*small))
            call.lost = False
            call.ended.clear()
            if self._ask(generation, call, *messages):
                self._known |= fresh.keys()
                for held in spent:
                    held.spent = True
                if loop.waits and any(each != after for each in stages.owners):
                    self._watch(call)
                    for held, ranks in zip(made, stages.after(call.done), strict=False):
                        held.owners = ranks
                return made

    def _results(self, call: Call, owners: Places, generation: int) -> list[Held]:
        """Return the results of a call, of which some may be known from before a loss."""
        found = list[Held]()
        known = [reference() for reference in call.made]
        for place, ranks in enumerate(owners[: len(call.loop.like)]):
            held = known[place] if known else None
            if held is None or held.spent:
                held = Held(self, 0, 0, (), None, call, place)
            held.number, held.generation = next(self._numbers), generation
            held.owners = ranks
            found.append(held)
        call.made = [weakref.ref(held) for held in found]
        return found

    def _renew(self, inputs: Iterable[Held], generation: int) -> None:
        """Place or compute again all inputs of earlier generations.

        Raises
        ------
        GangError
            If one cannot be computed again.
        """
        for held in inputs:
            if held.generation != generation:
                if held.call is None:
                    self._place(held)
                else:
                    self._repeat(held.call)

    def _repeat(self, last: Call) -> None:
        """Make a call again, after those that it needs."""
        alive: dict[tuple[int, int], Held] = {}
        stack = [last]
        done = set[int]()
        while stack:
            call = stack[-1]
            if id(call) in done:
                stack.pop()
                continue
            if call.error is not None:
                raise call.error
            if call.inputs is None:
                raise GangError("an array is lost, and its call is too long ago to be repeated")
            inputs, missing = list[Held](), list[Call]()
            for each in call.inputs:
                if isinstance(each, Held):
                    inputs.append(each)
                    continue
                maker, place = each
                held = alive.get((id(maker), place)) or maker.made[place]()
                if held is None or held.spent or held.generation != self.generation:
                    missing.append(maker)
                else:
                    inputs.append(held)
            if missing:
                done.difference_update(map(id, missing))
                stack += missing
                continue
            made = self._submit(call, inputs)
            stack.pop()
            done.add(id(call))
            alive |= {(id(call), place): held for place, held in enumerate(made)}
            needed = {(id(each[0]), each[1]) for other in stack for each in other.makers}
            alive = {key: held for key, held in alive.items() if key in needed}

    def wait(self, held: Held) -> None:
        """Wait for a result; compute it again if it is lost.

        Raises
        ------
        Exception
            If it failed, the error of the user's function.
        """
        call = held.call
        assert call is not None
        while True:
            self._await(call)
            if not call.lost:
                return
            with self._lock:
                if call.lost:
                    self._connect()
                    self._repeat(call)

    def _await(self, question: Question) -> None:
        """Wait for the answers; raise the error if it has failed."""
        self._watch(question)
        if question.error is not None:
            raise question.error

    def _watch(self, question: Question) -> None:
        """Wait for the answers, or until no rank makes progress for the time limit of gangs."""
        timeout, moved, seen = self.terms["timeout"], time.monotonic(), None
        try:
            while not question.ended.wait(timeout / 4):
                found = self.client.sync(self._reports, timeout / 4)
                calling = any(report["calling"] for each in found for report in each or ())
                if found != seen or calling:
                    seen, moved = found, time.monotonic()
                elif time.monotonic() - moved > timeout:
                    rank = found.index(None) if None in found else None
                    worker = None if rank is None else self._members[rank]
                    reason = f"no progress of a call for {timeout:g} s"
                    question.error = GangError(reason, rank, worker, "program")
                    self._lose()
        except BaseException:  # Ctrl-C, or what else a signal raises
            self._end_loops()
            raise

    def _end_loops(self) -> None:
        """End all loops that run, or wait for their turn."""
        calls = [each for each in [*self._asked.values()] if isinstance(each, Call)]
        loops = [call for call in calls if call.loop.most > 1]
        for loop in loops:
            loop.error = GangError("the loop was interrupted")
        if loops:
            self._lose()

    async def _reports(self, seconds: float) -> list[Any]:
        """Return what each rank says of its programs, ``None`` if it does not answer in time."""

        async def report(member: str) -> Any:
            with suppress(Exception):  # any reason not to answer
                answer = await asyncio.wait_for(self.client.rpc(member).dgpu_report(), seconds)
                return answer["running"]

        return await asyncio.gather(*map(report, self._members))

    def publish(self, held: Held, array: Array) -> dict[Any, Any]:
        """Make the blocks of a result known to Dask under the names of an array."""
        keys = [*flatten(array.__dask_keys__())]
        while True:
            self.wait(held)
            with self._lock:
                self._connect()
                self._renew([held], self.generation)
                if held.spent:
                    raise GangError("the array was donated to a call")
                stored = Question(len(set(held.owners)))
                message = {"op": "publish", "array": held.number, "name": array.name}
                places = [self._members[rank] for rank in held.owners]
                if not self._ask(held.generation, stored, message):
                    continue
            self._await(stored)
            if not stored.lost:
                break
        who_has = {key: [worker] for key, worker in zip(keys, places, strict=True)}
        return self.client.sync(self._known_to_dask, who_has, stored.nbytes, type(array._meta))

    async def _known_to_dask(
        self, who_has: Mapping[Any, list[str]], nbytes: Mapping[Any, int], kind: type
    ) -> dict[Any, Any]:
        scheduler: Any = self.client.scheduler
        await scheduler.update_data(who_has=who_has, nbytes=nbytes, client=self.client.id)
        futures: dict[Any, Any] = {key: Future(key, self.client) for key in who_has}
        for key in futures:
            self.client.futures[key].finish(type=kind)
        return futures

    def forget(self, programs: Iterable[Program]) -> None:
        """Let the ranks forget programs."""
        found = {plan.digest for each in programs for plan in each.plans.values()} & self._known
        self._known -= found
        if found:
            self._send(self.generation, {"op": "forget", "digests": list(found)})

    def _ask(self, generation: int, question: Question, *messages: Message) -> bool:
        """Send messages, of which the last asks for answers; wait if too many calls run."""
        self._slots.acquire()
        messages[-1]["number"] = number = next(self._numbers)
        self._asked[number] = question
        if self._send(generation, *messages):
            return True
        if self._asked.pop(number, None) is not None:
            self._slots.release()
        return False

    def _send(self, generation: int, *messages: Message) -> bool:
        """Send messages to all ranks if the generation still is the present one."""
        with self._state:
            if generation != self.generation or not self._connections:
                return False
            starts = not self._waiting
            self._waiting += messages
        if starts:
            self._soon(self._start)
        return True

    def _connect(self) -> None:
        """Connect to all workers if there are no connections.

        Raises
        ------
        GangError
            If it takes too long.
        """
        if not self._connections:
            self.client.sync(self._open_connections)

    # on the event loop

    async def _open_connections(self) -> None:
        scheduler: Any = self.client.scheduler
        end = time.monotonic() + self.terms["timeout"]
        while not self._connections:
            if self.generation:  # the scheduler has to learn of a loss
                await asyncio.sleep(LOST_SECONDS)
            name, found = uuid4().hex, list[Any]()
            members = tuple(await scheduler.dgpu_members())
            try:
                for member in members:
                    found.append(await self.client.rpc.connect(member, timeout=CONNECT_SECONDS))
                    await found[-1].write({"op": "dgpu_calls", "caller": name, "reply": False})
                for connection in found:
                    await asyncio.wait_for(connection.read(), CONNECT_SECONDS)
                if not members:
                    raise OSError("the cluster has no running worker")
            except OSError as error:
                for connection in found:
                    connection.abort()
                if time.monotonic() > end:
                    raise GangError(f"could not connect to the workers: {error}") from error
                await asyncio.sleep(LOST_SECONDS)
                continue
            self._freed.clear()
            with self._state:
                self.generation += 1
                self._name, self._members, self._known = name, members, set()
                self._is_open, self._sessions, self._wants_end = False, 0, False
                self._waiting = []
                self._outboxes = [Outbox(each) for each in found]
                self._connections = found
            for connection in found:
                self._spawn(self._read(connection, self.generation))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _start(self) -> None:
        if not self._sending:
            self._sending = True
            self._spawn(self._send_all())

    async def _send_all(self) -> None:
        """Send all messages that wait, in a session; end it if the ranks have asked for that."""
        try:
            while self._connections and (self._waiting or self._freed or self._wants_end):
                generation = self.generation
                if not self._is_open and (self._waiting or self._freed):
                    self._sessions += 1  # before a rank may ask to end it
                    await self._open_session()
                    if generation != self.generation:
                        continue
                    self._is_open = True
                with self._state:
                    messages, self._waiting = self._waiting, []
                if self._freed:
                    arrays = [self._freed.popleft() for _ in range(len(self._freed))]
                    messages.append({"op": "free", "arrays": arrays})
                if self._is_open and self._wants_end:
                    messages.append({"op": "end"})
                    self._is_open = False
                self._wants_end = False
                for outbox in self._outboxes:
                    await outbox.send(*messages)
        except Exception as error:
            if not isinstance(error, OSError):  # else a member is lost
                for question in self._asked.values():
                    question.error = error
            self._lose()
        finally:
            self._sending = False

    async def _open_session(self) -> None:
        """Let the ranks serve calls, after gangs before."""
        scheduler: Any = self.client.scheduler
        terms = {"caller": self._name, "members": self._members, **self.terms}
        await scheduler.dgpu_session(**terms)

    async def _read(self, connection: Connection, generation: int) -> None:
        try:
            with suppress(OSError):
                while True:
                    for message in await connection.read():
                        if generation == self.generation:
                            self._take(**message)
        finally:
            if generation == self.generation:
                self._lose()

    def _take(self, op: str, number: int = 0, **facts: Any) -> None:
        """Follow a message of a rank."""
        if op == "yield":
            if facts["session"] == self._sessions:
                self._wants_end = True
                self._start()
        elif op == "failed":
            failed = self._asked.get(number)
            if isinstance(failed, Call):
                failed.losses += 1
                restarts = failed.program.launch.program.limits.restarts
                if not facts["lost"] or failed.losses > restarts:
                    failed.error = opened(facts["error"])
                if isinstance(failed.error, UndeclaredError):
                    failed.program.fault = str(failed.error)
            self._lose()
        else:
            question = self._asked[number]
            if isinstance(question, Call):
                question.done = facts["done"]
                for place, index, block in pickle.loads(facts["values"]):
                    if (held := question.made[place]()) is not None:
                        held.blocks[index] = block
            else:
                question.nbytes.update(facts["nbytes"])
            question.awaited -= 1
            if not question.awaited:
                del self._asked[number]
                self._slots.release()
                question.end()

    def _lose(self) -> None:
        """Close all connections; what the ranks have is void."""
        with self._state:
            connections, self._connections = self._connections, []
            asked, self._asked = self._asked, {}
            self._waiting, self.generation = [], self.generation + 1
        for question in asked.values():
            self._slots.release()
            question.end(lost=True)
        for connection in connections:
            self._soon(connection.abort)
