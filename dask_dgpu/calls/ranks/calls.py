"""Calls of programs, and the arrays that they make."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from dask.array.core import Array
from dask.core import flatten
from distributed import Client, Future, futures_of, wait

from dask_dgpu.calls.ranks.connections import LOST_SECONDS, Connections, Question
from dask_dgpu.calls.ranks.history import Held, History, ProgramCall, repeat
from dask_dgpu.calls.trace import SMALL, Loop, Places, Program
from dask_dgpu.errors import GangError
from dask_dgpu.runtime.worker.calls import Message, iterations_of


@dataclass(eq=False)
class Stored(Question):
    """Blocks that become Dask's: the bytes of each key that a rank has stored."""

    nbytes: dict[Any, int] = field(default_factory=dict)

    def answered(self, facts: Mapping[str, Any]) -> None:
        """Follow the answer of a rank."""
        self.nbytes.update(facts["nbytes"])


class Ranks(Connections):
    """The workers of a client's cluster as ranks that it calls."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.token = uuid4().hex[:16]  # half of a token of Dask's, for the names of results
        self._lock = threading.RLock()  # of callers
        self._history = History()

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
            self.connect()
            if source.nbytes <= SMALL:
                self.client.replicate(futures, workers=self.members[:1])
            scheduler: Any = self.client.scheduler
            places = self.client.sync(scheduler.who_has, keys=keys)
            ranks = {member: rank for rank, member in enumerate(self.members)}
            ranks_of_blocks = [
                min((ranks[w] for w in places.get(k, ()) if w in ranks), default=-1) for k in keys
            ]
            if -1 not in ranks_of_blocks:
                break
            time.sleep(LOST_SECONDS)  # lost meanwhile, or on a new worker
            self.lose()
        blocks: dict[str, list[Any]] = {}
        for key, rank in zip(keys, ranks_of_blocks, strict=True):
            blocks.setdefault(self.members[rank], []).append((key[1:], key))
        held.owners = tuple(ranks_of_blocks)
        held.number, held.generation = next(self.numbers), self.generation
        self.send(held.generation, {"op": "adopt", "array": held.number, "blocks": blocks})

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
            call = ProgramCall(program=program, tokens=tokens, inputs=lineage, loop=loop)
            results = self._submit(call, inputs, donated)
            self._history.add(call, len(self.members))
            return results

    def _submit(
        self, call: ProgramCall, inputs: Sequence[Held], donated: Iterable[Held] = ()
    ) -> list[Held]:
        """Send a call to the ranks, whose inputs are placed or computed again if need be."""
        program, loop, spent = call.program, call.loop, [*donated]
        while True:
            self.connect()
            generation, all_members = self.generation, self.members
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
                if digest not in self.known
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
            if self.ask(generation, call, *messages):
                self.known |= fresh.keys()
                for held in spent:
                    held.spent = True
                if loop.waits and any(owner != after for owner in stages.owners):
                    self.watch(call)
                    for held, ranks in zip(made, stages.after(call.done), strict=False):
                        held.owners = ranks
                return made

    def _results(self, call: ProgramCall, owners: Places, generation: int) -> list[Held]:
        """Return the results of a call, of which some may be known from before a loss."""
        results = list[Held]()
        known = [reference() for reference in call.made]
        for place, ranks in enumerate(owners[: len(call.loop.like)]):
            held = known[place] if known else None
            if held is None or held.spent:
                held = Held(self, 0, 0, (), None, call, place)
            held.number, held.generation = next(self.numbers), generation
            held.owners = ranks
            results.append(held)
        call.made = [weakref.ref(held) for held in results]
        return results

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
                    self._compute_again(held.call)

    def _compute_again(self, call: ProgramCall) -> None:
        """Make a call again, after those that it needs."""
        repeat(
            call,
            lambda held: held.generation == self.generation and not held.spent,
            self._submit,
        )

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
            self.wait_for(call)
            if not call.lost:
                return
            with self._lock:
                if call.lost:
                    self.connect()
                    self._compute_again(call)

    def iterations(self, call: ProgramCall) -> tuple[int, int]:
        """Return how many iterations of a call have ended, and at most: as many at its end."""
        if call.ended.is_set() or not self.members:
            return call.done, call.done
        first = [*self.members[:1]]
        answers = self.client.run(iterations_of, call.number, self.name, workers=first)
        (done,) = answers.values()
        return done, call.loop.most

    def publish(self, held: Held, array: Array) -> dict[Any, Any]:
        """Make the blocks of a result known to Dask under the names of an array."""
        keys = [*flatten(array.__dask_keys__())]
        while True:
            self.wait(held)
            with self._lock:
                self.connect()
                self._renew([held], self.generation)
                if held.spent:
                    raise GangError("the array was donated to a call")
                stored = Stored(len(set(held.owners)))
                message = {"op": "publish", "array": held.number, "name": array.name}
                places = [self.members[rank] for rank in held.owners]
                if not self.ask(held.generation, stored, message):
                    continue
            self.wait_for(stored)
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
        digests = {
            plan.digest for program in programs for plan in program.plans.values()
        } & self.known
        self.known -= digests
        if digests:
            self.send(self.generation, {"op": "forget", "digests": list(digests)})
