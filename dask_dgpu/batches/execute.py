"""Batches of a plan: one is loaded and one is written while another is computed."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, pairwise
from math import prod
from typing import Any

from dask_dgpu.batches.again import halved, out_of_memory, rest
from dask_dgpu.batches.call import Call
from dask_dgpu.batches.notation import Tile
from dask_dgpu.batches.plan import Plan
from dask_dgpu.batches.progress import Batches
from dask_dgpu.batches.shared import Shared
from dask_dgpu.batches.sink import Sink
from dask_dgpu.batches.sites import LostError


def execute(call: Call, plan: Plan, out: Any, shared: Shared, *, progress: bool) -> None:
    """Compute a call and write its result; a batch that fails writes nothing.

    After a ``MemoryError`` or the loss of a worker the parts that are not written are computed in
    smaller batches, once. The error of a batch gets a note that says how many parts were written.
    """
    if prod(call.shape) == 0:
        return
    sink = Sink(call.notation, call.shape, call.dtype, out)
    work = _Work(call, sink, shared, progress)
    try:
        if work.is_done(plan.batches, call.notation.tiles(plan.lengths)):
            return
        smaller = halved(call, plan)
        tiles = list(rest(call, plan, smaller, sink.written))
        try:
            work.run(len(tiles), iter(tiles))
        except MemoryError as error:
            raise out_of_memory(call, plan, smaller) from error
    except Exception as error:
        if plan.batches > 1:
            error.add_note(
                f"dask_dgpu.run: {len(sink.written)} parts of the result were written, "
                f"of {call.operation.name} in {plan.batches} batches"
            )
        raise


@dataclass(frozen=True)
class _Batch:
    """A batch that is being computed.

    Its operands stay until it has ended: Dask cannot compute scattered blocks again.
    """

    tile: Tile
    arrays: list[Any]
    handle: Any


@dataclass(frozen=True)
class _Work:
    """Batches of a call, and where their results go."""

    call: Call
    sink: Sink
    shared: Shared
    progress: bool

    def is_done(self, count: int, tiles: Iterator[Tile]) -> bool:
        """Compute batches; return whether memory and workers lasted."""
        try:
            self.run(count, tiles)
        except (MemoryError, LostError):
            if self.sink.is_writing:  # nobody knows what is written
                raise
        else:
            return True
        self.sink.drop()
        self.shared.clear()
        gc.collect()  # frames of the error hold arrays
        return False

    def run(self, count: int, tiles: Iterator[Tile]) -> None:
        """Compute batches and write their results."""
        call, site = self.call, self.call.site
        loader = _Loader(call, self.shared)
        started: deque[_Batch] = deque(maxlen=2)
        ahead: Future[list[Any]] | None = None
        with (
            ThreadPoolExecutor(1, "dgpu-load") as loading,
            Batches(call.operation.name, count, self.progress) as bar,
        ):
            try:
                for tile, following in pairwise(chain(tiles, [None])):
                    assert tile is not None
                    arrays = loader.load(tile) if ahead is None else ahead.result()
                    batch = _Batch(tile, arrays, site.start(_result(call, arrays, tile)))
                    started.append(batch)
                    arrays, ahead = [], None
                    if len(started) > 1:
                        self._write(started[0])
                        started.popleft()
                        bar.advance()
                    if following is not None:
                        ahead = loading.submit(loader.load, following)
                while started:
                    self._write(started[0])
                    started.popleft()
            except BaseException:
                for batch in started:
                    site.cancel(batch.handle)
                raise
        self.sink.finish()

    def _write(self, batch: _Batch) -> None:
        self.sink.add(batch.tile, list(self.call.site.blocks(batch.handle)))


def _result(call: Call, arrays: Sequence[Any], tile: Tile) -> Any:
    """Return the result of a batch as a Dask array, without the halos of its operands."""
    result = call.template.call(call.operation.function, arrays)
    trims = call.notation.trims(call.shape, tile)
    return result if all(trim == slice(None) for trim in trims) else result[trims]


class _Loader:
    """Loads the operands of batches, and keeps those that the next batch reads too."""

    def __init__(self, call: Call, shared: Shared) -> None:
        self.call = call
        self.shared = shared
        self.last: dict[int, tuple[Any, Any]] = {}

    def load(self, tile: Tile) -> list[Any]:
        """Return the operands of a batch as Dask arrays."""
        call = self.call
        operands = call.operands
        spans = [call.notation.read_spans(at, each.shape, tile) for at, each in enumerate(operands)]
        shapes = [tuple(hi - lo for lo, hi in each) for each in spans]
        found = []
        for at, chunks in enumerate(call.chunks(shapes)):
            place = (id(operands[at].source), spans[at], chunks)
            if self.last.get(at, (None,))[0] != place:
                self.last.pop(at, None)
                self.last[at] = place, self._load(at, place)
            found.append(self.last[at][1])
        return found

    def _load(self, at: int, place: Any) -> Any:
        operand, site = self.call.operands[at], self.call.site
        _, spans, chunks = place

        def load() -> Any:
            return site.load(operand.read(spans), chunks)

        is_whole = spans == tuple((0, size) for size in operand.shape)
        return self.shared.get(place, operand.nbytes, load) if is_whole else load()
