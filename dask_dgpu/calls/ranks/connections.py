"""Connections to all ranks: messages, sessions, and questions that they answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from distributed import Client

from dask_dgpu.errors import GangError
from dask_dgpu.runtime.worker.calls import Message, Outbox

if TYPE_CHECKING:
    from distributed.comm.core import Comm as Connection

MOST_CALLS = 64
"""Number of calls that the ranks may not have finished; a further one waits."""

FREE_SECONDS = 0.05
"""Freed arrays wait so long for a call with which they are sent."""

LOST_SECONDS = 0.2
"""Seconds between two attempts to connect after a loss."""

CONNECT_SECONDS = 10.0
"""Most seconds for a connection to a rank."""


@dataclass(eq=False)
class Question:
    """Messages to the ranks that so many ``awaited`` ranks have to answer; ``lost`` if they cannot.

    It has failed if there is an ``error``.
    """

    awaited: int = 0
    number: int = 0
    ended: threading.Event = field(default_factory=threading.Event)
    lost: bool = False
    error: BaseException | None = None

    def end(self, *, lost: bool = False) -> None:
        """Let those who wait go on."""
        self.lost = lost
        self.ended.set()

    def answered(self, facts: Mapping[str, Any]) -> None:
        """Follow the answer of a rank."""

    def failed(self, error: bytes, *, lost: bool) -> None:
        """Follow the failure of a rank, after which all connections are closed."""

    def interrupted(self) -> bool:
        """Whether it has to end as nobody waits for it."""
        return False


class Connections:
    """Connections of a client to all workers of its cluster, made on these ``terms``."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.terms: Mapping[str, Any] = {}
        self.scheduler: str = client.scheduler_info()["id"]
        loop: Any = client.loop
        self._asyncio: asyncio.AbstractEventLoop = loop.asyncio_loop
        self._state = threading.Lock()  # held for moments
        self._slots = threading.Semaphore(MOST_CALLS)
        self.numbers = count(1)
        self.generation = 0
        self.members: tuple[str, ...] = ()
        self._connections: list[Connection] = []
        self._outboxes: list[Outbox] = []
        self._waiting: list[Message] = []
        self._sending = False
        self._wants_end = False
        self._is_open = False
        self._sessions = 0
        self.name = ""
        self.known: set[bytes] = set()
        self._freed: deque[int] = deque()
        self._asked: dict[int, Question] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # of any thread

    @property
    def is_on_loop(self) -> bool:
        """Whether this thread runs the client's event loop, and so must not wait for it."""
        try:
            return asyncio.get_running_loop() is self._asyncio
        except RuntimeError:
            return False

    def free(self, number: int) -> None:
        """Free an array on the ranks soon."""
        self._freed.append(number)
        if len(self._freed) == 1:
            self._soon(self._asyncio.call_later, FREE_SECONDS, self._start)

    def _soon(self, function: Callable[..., Any], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the client is closed, and its connections with it
            self._asyncio.call_soon_threadsafe(function, *arguments)

    # of callers

    def ask(self, generation: int, question: Question, *messages: Message) -> bool:
        """Send messages, of which the last asks for answers; wait if too many calls run."""
        self._slots.acquire()
        messages[-1]["number"] = question.number = number = next(self.numbers)
        self._asked[number] = question
        if self.send(generation, *messages):
            return True
        if self._asked.pop(number, None) is not None:
            self._slots.release()
        return False

    def send(self, generation: int, *messages: Message) -> bool:
        """Send messages to all ranks if the generation still is the present one."""
        with self._state:
            if generation != self.generation or not self._connections:
                return False
            starts = not self._waiting
            self._waiting += messages
        if starts:
            self._soon(self._start)
        return True

    def connect(self) -> None:
        """Connect to all workers if there are no connections.

        Raises
        ------
        GangError
            If it takes too long.
        """
        if not self._connections:
            self.client.sync(self._open_connections)

    def wait_for(self, question: Question) -> None:
        """Wait for the answers; raise the error if it has failed."""
        self.watch(question)
        if question.error is not None:
            raise question.error

    def watch(self, question: Question) -> None:
        """Wait for the answers, or until no rank makes progress for the time limit of gangs."""
        timeout, moved, seen = self.terms["timeout"], time.monotonic(), None
        try:
            while not question.ended.wait(timeout / 4):
                reports = self.client.sync(self._reports, timeout / 4)
                calling = any(report["calling"] for each in reports for report in each or ())
                if reports != seen or calling:
                    seen, moved = reports, time.monotonic()
                elif time.monotonic() - moved > timeout:
                    rank = reports.index(None) if None in reports else None
                    worker = None if rank is None else self.members[rank]
                    reason = f"no progress of a call for {timeout:g} s"
                    question.error = GangError(reason, rank, worker, "program")
                    self.lose()
        except BaseException:  # Ctrl-C, or what else a signal raises
            if [each for each in [*self._asked.values()] if each.interrupted()]:
                self.lose()
            raise

    async def _reports(self, seconds: float) -> list[Any]:
        """Return what each rank says of its programs, ``None`` if it does not answer in time."""

        async def report(member: str) -> Any:
            with suppress(Exception):  # any reason not to answer
                return await asyncio.wait_for(self.client.rpc(member).dgpu_report(), seconds)

        return await asyncio.gather(*map(report, self.members))

    # on the event loop

    async def _open_connections(self) -> None:
        scheduler: Any = self.client.scheduler
        end = time.monotonic() + self.terms["timeout"]
        while not self._connections:
            if self.generation:  # the scheduler has to learn of a loss
                await asyncio.sleep(LOST_SECONDS)
            name, connections = uuid4().hex, list[Any]()
            members = tuple(await scheduler.dgpu_members())
            try:
                for member in members:
                    connections.append(
                        await self.client.rpc.connect(member, timeout=CONNECT_SECONDS)
                    )
                    await connections[-1].write(
                        {"op": "dgpu_calls", "caller": name, "reply": False}
                    )
                for connection in connections:
                    await asyncio.wait_for(connection.read(), CONNECT_SECONDS)
                if not members:
                    raise OSError("the cluster has no running worker")
            except OSError as error:
                for connection in connections:
                    connection.abort()
                if time.monotonic() > end:
                    raise GangError(f"could not connect to the workers: {error}") from error
                await asyncio.sleep(LOST_SECONDS)
                continue
            self._freed.clear()
            with self._state:
                self.generation += 1
                self.name, self.members, self.known = name, members, set()
                self._is_open, self._sessions, self._wants_end = False, 0, False
                self._waiting = []
                self._outboxes = [Outbox(connection) for connection in connections]
                self._connections = connections
            for connection in connections:
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
            self.lose()
        finally:
            self._sending = False

    async def _open_session(self) -> None:
        """Let the ranks serve calls, after gangs before."""
        scheduler: Any = self.client.scheduler
        terms = {"caller": self.name, "members": self.members, **self.terms}
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
                self.lose()

    def _take(self, op: str, number: int = 0, **facts: Any) -> None:
        """Follow a message of a rank."""
        if op == "yield":
            if facts["session"] == self._sessions:
                self._wants_end = True
                self._start()
        elif op == "failed":
            if number in self._asked:
                self._asked[number].failed(**facts)
            self.lose()
        else:
            question = self._asked[number]
            question.answered(facts)
            question.awaited -= 1
            if not question.awaited:
                del self._asked[number]
                self._slots.release()
                question.end()

    def lose(self) -> None:
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
