"""Arrays that stay on the ranks, and are Dask's as soon as any other graph reads them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import count
from threading import Thread
from typing import Any

import numpy as np
from dask.array.core import Array
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed.client import Future, FutureCancelledError

from dask_dgpu.calls.jit import listed
from dask_dgpu.calls.ranks.calls import Ranks
from dask_dgpu.calls.ranks.history import Held
from dask_dgpu.calls.trace import Loop, Program
from dask_dgpu.environment.facts import current_client
from dask_dgpu.optimizer import GraphOptimizer

NOTHING = HighLevelGraph({}, {})

LOST = ("lost", "cancelled")

NAME = "_dask_dgpu_ranks"
"""The attribute of a client with its ranks, and of an array with its copy there."""


class Result(Array):
    """A result of a call, a Dask array without tasks.

    Its graph has futures. They are made when something asks for the graph, and again if Dask has
    lost their results. The value of a small result has come with the answer.
    """

    __slots__ = ()

    def __new__(cls, held: Held, like: Array) -> Result:
        """Return the result that the ranks hold, an array like another."""
        name = f"dgpu-call-{held.ranks.token}{held.number:016x}"  # a token as Dask's
        self: Result = super().__new__(cls, NOTHING, name, like.chunks, meta=like._meta)
        vars(self).update(_held=held, _graph=None)
        return self

    @property
    def held(self) -> Held:
        """The array on the ranks."""
        held: Held = vars(self)["_held"]
        return held

    def iterations(self) -> tuple[int, int]:
        """Return how many iterations of the call have ended, and at most; equal at its end."""
        call = self.held.call
        return (1, 1) if call is None else self.held.ranks.iterations(call)

    @property
    def dask(self) -> HighLevelGraph:
        """The graph, of futures; the blocks are known to Dask from then on."""
        graph: HighLevelGraph | None = vars(self)["_graph"]
        lost = graph is not None and any(
            getattr(each, "status", "") in LOST for each in graph.layers.get(self.name, {}).values()
        )
        if graph is None or lost:
            if self.held.ranks.is_on_loop:
                return self._pending()
            futures = self.held.ranks.publish(self.held, self)
            graph = self._of_futures(futures)
            vars(self)["_graph"] = None
            vars(self)["_graph"] = graph
            Array(graph, self.name, self.chunks, meta=self._meta)  # annotates the layer
        return graph

    @dask.setter
    def dask(self, graph: HighLevelGraph) -> None:
        vars(self)["_graph"] = graph

    def _of_futures(self, futures: dict[Any, Any]) -> HighLevelGraph:
        return HighLevelGraph({self.name: MaterializedLayer(futures)}, {self.name: set()})

    def _pending(self) -> HighLevelGraph:
        """Return the graph with futures that a thread finishes.

        :func:`distributed.wait` and others ask for it on the event loop, which must not wait.
        """
        graph: HighLevelGraph | None = vars(self).get("_awaited")
        if graph is None:
            client: Any = self.held.ranks.client
            futures: dict[Any, Any]
            futures = {key: Future(key, client) for key in flatten(self.__dask_keys__())}

            def publish() -> None:
                try:
                    _ = self.dask
                except Exception as error:
                    for key in futures:
                        client.loop.add_callback(client.futures[key].set_error, error, None)
                finally:
                    del vars(self)["_awaited"]

            graph = vars(self)["_awaited"] = self._of_futures(futures)
            Thread(target=publish, name="dgpu-publish", daemon=True).start()
        return graph

    def compute(self, **kwargs: Any) -> Any:
        """Return the value; of a small result at once, as soon as the call has ended."""
        self.held.ranks.wait(self.held)
        blocks = self.held.blocks
        if not blocks or kwargs:
            try:
                return super().compute(**kwargs)
            except FutureCancelledError:  # lost meanwhile; the graph gets new ones
                return super().compute(**kwargs)
        value = np.empty(self.shape, self.dtype)
        starts = [np.cumsum([0, *sizes]) for sizes in self.chunks]
        for index, block in blocks.items():
            where = tuple(
                slice(start[at], start[at + 1]) for start, at in zip(starts, index, strict=True)
            )
            value[where] = block
        array = np.asarray(value, like=self._meta)
        return array[()] if not self.ndim else array


def called(
    ranks: Ranks, program: Program, arguments: Sequence[Any], donate: Collection[int]
) -> list[Array]:
    """Call a program; return what the function returns."""
    held = [
        _held(arguments[each] if isinstance(each, int) else each, ranks) for each in program.inputs
    ]
    returned = [each.name for each in listed(program.returned)]
    donated = {*donate} - {program.given.get(name) for name in returned}
    pairs = zip(held, program.inputs, strict=True)
    spent = [each for each, at in pairs if isinstance(at, int) and at in donated]
    made = ranks.call(program, held, program.called_with(arguments), program.once, spent)
    results = zip(program.results, made, strict=True)
    arrays: dict[str, Array] = {like.name: Result(each, like) for like, each in results}
    arrays |= {name: arguments[at] for name, at in program.given.items()}
    return [arrays[name] for name in returned]


def looped(
    ranks: Ranks, program: Program, state: Sequence[Array], most: int, *, waits: bool
) -> list[Array]:
    """Call a program on its results so many times; return the last of them.

    If it ``waits``, its last result, or at first the last of the ``state``, says whether it goes
    on.
    """
    read = [*state, *(each for each in program.inputs if not isinstance(each, int))]
    others = count(len(state))
    feeds = [each if isinstance(each, int) else next(others) for each in program.inputs]
    places = {result.name: len(read) + i for i, result in enumerate(program.results)}
    places.update(program.given)
    carry = [places[each.name] for each in listed(program.returned)]
    like = state[: len(state) - waits]
    loop = Loop(tuple(feeds), tuple(carry), tuple(like), most, waits)
    made = ranks.call(program, [_held(each, ranks) for each in read], program.tokens, loop)
    return [Result(each, array) for each, array in zip(made, like, strict=True)]


def ranks_of(planner: GraphOptimizer) -> Ranks | None:
    """Return the ranks of the current client, ``None`` if dask_dgpu is not enabled for them."""
    client = current_client()
    if client is None or client.asynchronous:
        return None
    ranks: Ranks | None = getattr(client, NAME, None)
    if ranks is None:
        ranks = Ranks(client)
        setattr(client, NAME, ranks)
    limits = planner.settings.limits
    ranks.terms = {
        "transport": planner.transport,
        "timeout": limits.timeout,
        "ports": limits.ports,
    }
    return ranks if ranks.scheduler == planner.facts.scheduler else None


def _held(array: Array, ranks: Ranks) -> Held:
    """Return an array on the ranks; one of Dask's is computed first."""
    if isinstance(array, Result) and array.held.ranks is ranks:
        return array.held
    held: Held | None = vars(array).get(NAME)
    source = None if held is None else held.source
    if held is None or held.ranks is not ranks or source is None or source.name != array.name:
        held = vars(array)[NAME] = ranks.adopt(array)
    return held
