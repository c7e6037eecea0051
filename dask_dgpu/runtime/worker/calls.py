"""A rank's side of calls: programs that a client calls directly, and their arrays on this rank.

A client has a connection to each rank, with the same messages in the same order. They are followed
on the program thread, within sessions, which the scheduler puts among the gangs, on all ranks in
the same order::

    client      call, call, free, end                  call ...
    scheduler             session              gang    session
    thread      ...       call, call, free, end, gang, call ...

So calls and gangs never wait for each other. If anything is launched behind a session, the rank
asks the client to end it. If a connection ends, so does the session, and its arrays are freed.
"""

from __future__ import annotations

import pickle
import queue
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from distributed.core import Status

from dask_dgpu.comm.protocol import Comm
from dask_dgpu.errors import CommAbortedError, CommError
from dask_dgpu.kernels.device.memory import lacks_memory
from dask_dgpu.operations.operation import Blocks, container_of
from dask_dgpu.runtime.execute import execute
from dask_dgpu.runtime.failure import IN_PROGRAM, RankError, failure_of
from dask_dgpu.runtime.tasks import PLUGIN
from dask_dgpu.runtime.worker.member import Job, Kept
from graph_opt.model.layout import CUPY, Index

if TYPE_CHECKING:
    from distributed import Worker
    from distributed.comm.core import Comm as Connection

    from dask_dgpu.runtime.worker.plugin import GangWorkerPlugin

Message = dict[str, Any]


@dataclass(frozen=True)
class Called:
    """A program that a client calls.

    Its values have these ``names``, and the ``results`` are some of these, by number. It reads the
    blocks at these ``places`` of each input, ``None`` for all.
    """

    kept: Kept
    names: tuple[str, ...]
    results: tuple[int, ...]
    places: tuple[tuple[Index, ...] | None, ...]


def repeating(at: int, length: int, back: int) -> int:
    """Return the place of an entry in a list that repeats from ``back`` after its end."""
    return at if at < length else back + (at - back) % (length - back)


def iterations_of(number: int, caller: str, dask_worker: Worker) -> int:
    """Return how many iterations of a client's call have ended on a worker."""
    plugin: Any = dask_worker.plugins[PLUGIN]
    served = plugin.callers.get(caller)
    last, done = (0, 0) if served is None else served.reached
    return done if last == number else 0


class Outbox:
    """Messages to the other end of a connection, in order; those that wait are sent together."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: list[Message] = []
        self._writing = False

    async def send(self, *messages: Message) -> None:
        """Send messages after all others; do nothing if the connection has ended."""
        self._waiting += messages
        if self._writing:
            return
        self._writing = True
        try:
            while self._waiting:
                some, self._waiting = self._waiting, []
                await self._connection.write(some)
        except OSError:  # the reader notices it too
            self._waiting.clear()
        finally:
            self._writing = False


class Caller:
    """A client that calls programs on this rank: its connection, programs and arrays."""

    def __init__(self, plugin: GangWorkerPlugin, connection: Connection) -> None:
        self._plugin = plugin
        self._connection = connection
        self._outbox = Outbox(connection)
        self._inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._arrays: dict[int, Blocks] = {}
        self._programs: dict[bytes, Called] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._joined: str | None = None  # the epoch of a call that runs
        self.sessions = 0
        self.reached = 0, 0  # the last call, and its iterations that have ended

    # on the event loop

    async def read(self) -> Status:
        """Read messages until the connection ends; then free all arrays."""
        try:
            await self._outbox.send({"op": "ready"})
            while True:
                for message in await self._connection.read():
                    if message["op"] == "adopt":
                        self._adopt(**message)
                    else:
                        self._inbox.put(message)
        except OSError:
            pass
        finally:
            self.close("the client has left")
        return Status.dont_reply

    def close(self, reason: str) -> None:
        """End the session, also while a call runs."""
        with self._lock:
            self._closed, epoch = True, self._joined
        if epoch is not None:  # other ranks may wait for this one
            self._plugin.leave(epoch, reason)
        self._inbox.put(None)
        self._connection.abort()

    def _adopt(self, op: str, array: int, blocks: Mapping[str, Any]) -> None:
        """Keep blocks of this worker as an array of the client."""
        data, own = self._plugin.worker.data, blocks.get(self._plugin.worker.address, ())
        try:
            self._arrays[array] = {tuple(index): data[key] for index, key in own}
        except KeyError as missing:  # moved meanwhile
            self._fail(0, CommError(f"block {missing} is not here"), "stage")

    def make_way(self) -> None:
        """Ask the client to end the last session; any thread may call this."""
        self._send({"op": "yield", "session": self.sessions})

    def _send(self, message: Message) -> None:
        self._plugin.worker.loop.add_callback(self._outbox.send, message)

    # on the program thread

    def serve(self, **member: Any) -> None:
        """Follow messages until the client ends the session."""
        while (message := self._inbox.get()) is not None:
            op, number = message.pop("op"), message.get("number", 0)
            if op == "end":
                return
            with self._lock:
                if self._closed:
                    break
                self._joined = member["epoch"]
            try:
                getattr(self, f"_{op}")(**message, **(member if op == "call" else {}))
            except BaseException as error:
                self._fail(number, error, IN_PROGRAM)
                self._plugin.member.device.recover()
                if lacks_memory(error):
                    self._plugin.relieve()
                break
            finally:
                self._joined = None
        self._arrays.clear()
        self._programs.clear()

    def _fail(self, number: int, error: BaseException, phase: str, rank: int = -1) -> None:
        """Tell the client why a call failed; it then closes all connections."""
        self._closed = True
        failure = failure_of(error, rank, self._plugin.worker.address, phase)
        lost = isinstance(error, CommError) and not isinstance(failure, RankError)
        facts = {"number": number, "lost": lost, "error": pickle.dumps(failure)}
        self._send({"op": "failed", **facts})

    def _open(self, digest: bytes, text: bytes, plans: bytes, **facts: Any) -> None:
        """Keep a program."""
        self._programs[digest] = Called(Kept(text, plans), **facts)

    def _forget(self, digests: Iterable[bytes]) -> None:
        for digest in digests:
            self._programs.pop(digest, None)

    def _blocks(self, array: int) -> Iterable[tuple[Index, Any]]:
        """Return this rank's blocks of an array, none if others have computed it."""
        return self._arrays.get(array, {}).items()

    def _free(self, arrays: Iterable[int]) -> None:
        for array in arrays:
            self._arrays.pop(array, None)

    def _call(
        self,
        number: int,
        digests: list[bytes],
        back: int,
        tokens: bytes,
        ranks: int,
        reads: list[int],
        spent: list[int],
        makes: list[int],
        feeds: list[int],
        carry: list[int],
        small: list[int],
        most: int,
        waits: bool,
        epoch: str,
        rank: int,
        size: int,
        **terms: Any,
    ) -> None:
        """Run programs in a loop; see :class:`~dask_dgpu.calls.trace.Loop` and its stages.

        It reads arrays, of which some are ``spent``, and makes others. It is for the first
        ``ranks``: all, or one.
        """
        plugin = self._plugin
        values = [dict(self._blocks(array)) for array in reads]
        self._free(spent)
        if rank >= ranks:
            return
        first = self._programs[digests[0]]
        job = Job(
            *(plugin.worker, f"dgpu-call-{id(self)}", number, rank, ranks, epoch, digests[0]),
            *(tokens, first.names, [], [], True, False),
        )
        plugin.jobs[job.key, number] = job
        done = 0
        try:
            where = epoch if ranks == size else "alone"
            comm = plugin.member.join(where, rank, ranks, patient=True, **terms)
            job.phase = IN_PROGRAM
            self.reached = number, 0
            while done < most and (not waits or self._goes_on(values[len(makes)], comm)):
                if self._closed:
                    raise CommAbortedError("the client has left")
                called = self._programs[digests[repeating(done, len(digests), back)]]
                given = [
                    {at: values[feed][at] for at in values[feed] if places is None or at in places}
                    for feed, places in zip(feeds, called.places, strict=True)
                ]
                done += 1
                for i in range(len(carry) if done < most else len(values)):
                    if i not in carry:  # so that it can be freed
                        values[i] = {}
                todo = called.kept.prepared(tokens, rank, plugin.device)
                computed = execute(todo, called.names, comm, plugin.member.device, given, job)
                made: dict[str, Blocks] = {called.names[value]: {} for value in called.results}
                for (name, *index), block in computed.items():
                    made[name][tuple(index)] = block
                results = *values, *made.values()
                values[: len(carry)] = [results[at] for at in carry]
                job.spans.clear()
                self.reached = number, done
        finally:
            del plugin.jobs[job.key, number]
        self._arrays.update(zip(makes, values, strict=False))
        blocks = [
            (place, index, self._on_host(block))
            for place in small
            for index, block in values[place].items()
        ]
        if blocks or rank == 0 or waits:
            facts = {"number": number, "done": done, "values": pickle.dumps(blocks)}
            self._send({"op": "done", **facts})

    def _goes_on(self, wanted: Blocks, comm: Comm) -> bool:
        """Return on all ranks the number that one of them has."""
        own = any(bool(self._on_host(block)) for block in wanted.values())
        if comm.size == 1:
            return own
        device = self._plugin.member.device
        with device.computing():
            flag = device.zeros((1,), "int32")
            flag[...] = own
            comm.all_reduce(flag, "max").wait()
            goes_on = bool(device.to_host(flag)[0])
        comm.check()
        return goes_on

    def _on_host(self, block: Any) -> Any:
        on_device = container_of(block) == CUPY
        return np.asarray(self._plugin.member.device.to_host(block) if on_device else block)

    def _publish(self, number: int, array: int, name: str) -> None:
        """Store the blocks of an array as results of Dask, and describe them to the client."""
        blocks = {(name, *index): block for index, block in self._blocks(array)}
        if blocks:
            self._plugin.worker.loop.add_callback(self._store, number, blocks)

    def _store(self, number: int, blocks: dict[Any, Any]) -> None:
        nbytes = self._plugin.worker.update_data(blocks)["nbytes"]
        self._send({"op": "stored", "number": number, "nbytes": list(nbytes.items())})
