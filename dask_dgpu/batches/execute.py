"""Batches of a plan: one is loaded and one is written while another is computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from math import prod
from typing import Any

from dask_dgpu.batches.again import SHARE, twice
from dask_dgpu.batches.call import Call
from dask_dgpu.batches.choose import choose
from dask_dgpu.batches.notation import Lengths, Span, Tile
from dask_dgpu.batches.plan import Plan
from dask_dgpu.batches.progress import Batches
from dask_dgpu.batches.shared import Shared
from dask_dgpu.batches.sink import Sink


def execute(call: Call, plan: Plan, out: Any, shared: Shared, *, progress: bool, new: bool) -> None:
    """Compute a call and write its result; a batch that fails writes nothing.

    After a ``MemoryError`` or the loss of a worker the parts that are not written are computed in
    smaller batches, once. The error of a batch gets a note that says how many parts were written. A
    ``new`` array for the result is nobody else's, nor an operand.
    """
    if prod(call.shape) == 0:
        return
    sink = Sink(call.notation, call.shape, call.dtype, out, call.site.copying, new=new)
    work = _Work(call, sink, shared, progress)

    def smaller(is_lost: bool) -> Any:
        lengths = choose(call.notation, call.peak, call.notation.batches, SHARE * plan.peak_bytes)
        if lengths is None and not is_lost:
            return None
        sink.drop()
        shared.clear()
        lengths = lengths or call.smallest
        tiles = list(_rest(call, plan, lengths, sink.written))
        return call.peak(lengths), partial(work.run, len(tiles), iter(tiles), lengths)

    first = partial(work.run, plan.batches, call.notation.tiles(plan.lengths), plan.lengths)
    try:  # while a part is written, nobody knows what is written
        twice(plan, first, smaller, lambda: not sink.is_writing)
    except Exception as error:
        if plan.batches > 1:
            error.add_note(
                f"dask_dgpu.run: {len(sink.written)} parts of the result were written, "
                f"of {call.operation.name} in {plan.batches} batches"
            )
        raise


def _rest(
    call: Call, plan: Plan, smaller: Lengths, written: Container[tuple[Span, ...]]
) -> Iterator[Tile]:
    """Yield smaller tiles of those parts of the result that are not written."""
    notation = call.notation
    parts = {
        notation.write_spans(call.shape, tile): notation.summed(tile)
        for tile in notation.tiles(plan.lengths)
    }
    for spans, tile in parts.items():
        if spans not in written:
            yield from notation.tiles(smaller, tile)


@dataclass(frozen=True)
class _Batch:
    """A batch that is being computed.

    All that it reads stays until it has ended: Dask cannot compute scattered blocks again, and a
    graph may reach the scheduler after the release of its inputs. The result stays on the devices
    if the next batch ``adds`` to it.
    """

    tile: Tile
    read: list[Any]
    handle: Any
    adds: bool


@dataclass(frozen=True)
class _Work:
    """Batches of a call, and where their results go."""

    call: Call
    sink: Sink
    shared: Shared
    progress: bool

    def run(self, count: int, tiles: Iterator[Tile], lengths: Lengths) -> None:
        """Compute batches of at most these lengths and write their results."""
        call, site = self.call, self.call.site
        started: deque[_Batch] = deque()
        ahead: Future[list[Any]] | None = None
        total: Any = None
        with (
            closing(_Loader(call, self.shared, call.staying(lengths))) as loader,
            ThreadPoolExecutor(1, "dgpu-load") as loading,
            Batches(call.operation.name, count, self.progress) as bar,
        ):
            try:
                for tile, following in pairwise(chain(tiles, [None])):
                    assert tile is not None
                    if ahead is None:
                        self._write(started, bar)
                        arrays = loader.load(tile)
                    else:
                        arrays = ahead.result()
                    started.append(self._start(tile, arrays, total, following))
                    total = started[-1].handle if started[-1].adds else None
                    arrays, ahead = [], None
                    if len(started) > 1:
                        self._end(started[0])
                    if following is not None and loader.keeps(following):
                        ahead = loading.submit(loader.load, following)
                    self._write(started, bar, but=1)
                self._write(started, bar)
            except BaseException:
                for batch in started:
                    site.cancel(batch.handle)
                    batch.read.clear()
                arrays, ahead, total = [], None, None  # frames of the error hold these too
                raise
        self.sink.finish()

    def _start(self, tile: Tile, arrays: list[Any], total: Any, following: Tile | None) -> _Batch:
        """Begin a batch; its result is added to the ``total`` of those before, if there is one."""
        call = self.call
        result = _result(call, arrays, tile)
        if total is not None:
            result = total + result
        summed = call.notation.summed
        adds = call.adds_on_devices and following is not None and summed(tile) == summed(following)
        return _Batch(tile, [*arrays, total], call.site.start(result), adds)

    def _end(self, batch: _Batch) -> None:
        """Wait for a batch, and free what it has read."""
        self.call.site.wait(batch.handle)
        batch.read.clear()

    def _write(self, started: deque[_Batch], bar: Batches, but: int = 0) -> None:
        """Write the results of batches, but for the last ones."""
        while len(started) > but:
            self._finish(started[0])
            started.popleft()
            bar.advance()

    def _finish(self, batch: _Batch) -> None:
        """Write a result, or wait for it if the next batch adds to it."""
        call, site, tile = self.call, self.call.site, batch.tile
        if batch.adds:
            site.wait(batch.handle)
            site.release(batch.handle)
            return
        if call.adds_on_devices:  # to the results of all batches of this part
            tile = call.notation.summed(tile)
        self.sink.add(tile, list(site.blocks(batch.handle, self.sink.room(tile))))


def _result(call: Call, arrays: Sequence[Any], tile: Tile) -> Any:
    """Return the result of a batch as a Dask array, without the halos of its operands."""
    result = call.of(arrays)
    trims = call.notation.trims(call.shape, tile)
    return result if all(trim == slice(None) for trim in trims) else result[trims]


class _Loader:
    """Loads the operands of batches, and keeps those that the next batch reads too.

    ``stay`` are the operands that several batches in turn read.
    """

    def __init__(self, call: Call, shared: Shared, stay: Collection[int]) -> None:
        self.call = call
        self.shared = shared
        self.stay = stay
        self.last: dict[int, tuple[Any, Any]] = {}

    def keeps(self, tile: Tile) -> bool:
        """Whether the operands that stay do so for this batch."""
        places = self._places(tile)
        return all(self.last[at][0] == places[at] for at in self.stay)

    def load(self, tile: Tile) -> list[Any]:
        """Return the operands of a batch as Dask arrays.

        Those that stay are loaded first: they are larger, and windows are made for the first.
        """
        places = self._places(tile)
        for at in sorted(range(len(places)), key=lambda at: at not in self.stay):
            if self.last.get(at, (None,))[0] != places[at]:
                self.last.pop(at, None)
                self.last[at] = places[at], self._load(at, places[at])
        return [self.last[at][1] for at in range(len(places))]

    def close(self) -> None:
        """Let go of all operands."""
        self.last.clear()

    def _places(self, tile: Tile) -> list[Any]:
        """Return identity, spans and chunks of each operand."""
        call = self.call
        operands = call.operands
        spans = [call.notation.read_spans(at, each.shape, tile) for at, each in enumerate(operands)]
        shapes = [tuple(hi - lo for lo, hi in each) for each in spans]
        sources = (id(each.source) for each in operands)
        return list(zip(sources, spans, call.chunks(shapes), strict=True))

    def _load(self, at: int, place: Any) -> Any:
        operand, site = self.call.operands[at], self.call.site
        _, spans, chunks = place

        def load() -> Any:
            return site.load(operand.read(spans), chunks)

        is_whole = spans == tuple((0, size) for size in operand.shape)
        return self.shared.get(place, operand.nbytes, load) if is_whole else load()
