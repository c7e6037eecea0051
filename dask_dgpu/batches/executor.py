"""One executor: batches of a plan, one loaded and one written while another is computed."""

from __future__ import annotations

import gc
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise
from math import prod
from threading import Lock, Timer
from typing import Any

from dask.utils import format_bytes

from dask_dgpu.batches.call import BatchCall, Request
from dask_dgpu.batches.notation import Lengths, Tile, choose
from dask_dgpu.batches.plan import Plan
from dask_dgpu.batches.planning import in_passes, plan_passes, targets
from dask_dgpu.batches.sinks import Sink, Sum, selected, temporary
from dask_dgpu.batches.sites import Site
from dask_dgpu.batches.whole import Whole
from dask_dgpu.batches.windows import LostError
from dask_dgpu.cost.console import counting_bars
from dask_dgpu.errors import DgpuError, OutOfMemoryError
from dask_dgpu.kernels.device.memory import lacks_memory

SHARE = 0.5
"""Share of the planned bytes that the second attempt may use."""
MOMENT = 2.0
"""Seconds without a bar."""

Place = tuple[Any, ...]
"""Identity, spans and chunks of an operand."""
Attempt = Callable[[], Any]


@contextmanager
def bar(title: str, total: int, shown: bool = True) -> Iterator[Callable[[], None]]:
    """Draw a bar of ``total`` steps after a moment, if ``shown``; yield what counts a step."""
    bars = counting_bars(stderr=True)
    task, timer = bars.add_task(title, total=total), Timer(MOMENT, bars.start)
    timer.daemon = True
    if shown:
        timer.start()
    try:
        yield partial(bars.advance, task)
    finally:
        timer.cancel()
        if shown:
            timer.join()  # it may be about to draw
        if bars.live.is_started:
            bars.stop()


class Shared:
    """Keeps parts of operands that several calls read, as far as they fit in a limit.

    ``identities`` are those of the operands of all calls.
    """

    def __init__(self, identities: Iterable[int] = (), limit: float = 0) -> None:
        self.identities = {each for each, calls in Counter(identities).items() if calls > 1}
        self.limit = limit
        self._kept: dict[Place, Any] = {}
        self._lock = Lock()

    def get(self, place: Place, nbytes: int, load: Callable[[], Any]) -> Any:
        """Return an operand, loaded at its first use; others wait meanwhile."""
        if place[0] not in self.identities:
            return load()
        with self._lock:
            if place in self._kept:
                return self._kept[place]
            operand = load()
            if sum(each.nbytes for each in self._kept.values()) + nbytes <= self.limit:
                self._kept[place] = operand
            return operand

    def clear(self) -> None:
        """Drop all operands: they need memory, or were on a worker that was lost."""
        with self._lock:
            self._kept.clear()


def compute(request: Request, room: float, out: Any, shared: Shared, *, progress: bool) -> Any:
    """Plan a request within ``room`` bytes of each device, and compute it."""
    call = BatchCall.planned(request)
    if call is None:
        result = _compute_whole(request, room, out, progress)
    else:
        calls = in_passes(call, room)
        plan = plan_passes(call.title, calls, room)
        _check_fits(plan)
        result = call.target(out, call.shape, call.dtype)
        _execute_passes(
            calls, plan, result if out is None else selected(call, out), shared, progress
        )
    return result[()] if out is None and not result.shape else result


def _check_fits(plan: Plan) -> None:
    if not plan.feasible:
        raise DgpuError(f"{plan.title} does not fit: {plan.advice}")


def _compute_whole(request: Request, room: float, out: Any, progress: bool) -> Any:
    """Compute a function as one graph, a second time in smaller blocks if memory did not last."""
    site, planned = request.site, partial(Whole.planned, request)
    whole = None
    with suppress(LostError):  # a worker, while operands were sent
        whole = attempted(site, partial(planned, room))
    if whole is None:
        gc.collect()  # frames of the error hold operands
        whole = planned(room)
    _check_fits(whole.plan)
    blocks, peak, result = whole.chunks, whole.plan.peak_bytes, whole.result
    target = request.target(out, result.shape, result.dtype) if whole.is_lazy else out

    def attempt(whole: Whole) -> Any:
        try:
            with bar(request.operation.name, whole.blocks, progress) as advance:
                return whole.compute(target, advance)
        except BaseException:
            whole.drop()
            raise

    def smaller(is_lost: bool) -> Any:
        plan = planned(SHARE * min(room, peak))
        if not is_lost and plan.chunks == blocks:
            plan.drop()
            return None
        return plan.plan.peak_bytes, partial(attempt, plan)

    return twice(site, whole.plan, partial(attempt, whole), smaller)


def attempted(site: Site, attempt: Attempt) -> Any:
    """Return the result of an attempt; raise a ``LostError`` if a worker was lost meanwhile."""
    before = site.gone
    try:
        return attempt()
    except Exception as error:
        if lost := site.lost(before, error):
            message = f"lost {', '.join(sorted(lost))} while batches were computed"
            raise LostError(message) from error
        raise


def twice(
    site: Site,
    plan: Plan,
    first: Attempt,
    smaller: Callable[[bool], tuple[int, Attempt] | None],
    may_repeat: Callable[[], bool] = lambda: True,
) -> Any:
    """Return the result of an attempt, or of a second one after a lack of memory or a loss.

    ``smaller`` returns its planned bytes and the attempt, ``None`` if nothing is smaller. It is
    called with whether a worker was lost, for then it need not be smaller.
    """
    try:
        return attempted(site, first)
    except Exception as error:
        is_lost = isinstance(error, LostError)
        if not (may_repeat() and (is_lost or lacks_memory(error))):
            raise
    gc.collect()  # frames of the error hold arrays
    planned, text = plan.peak_bytes, format_bytes(plan.peak_bytes)
    if (halved := smaller(is_lost)) is None:
        message = (
            f"{plan.title} ran out of memory with {text} planned on each device, and cannot be "
            "cut to half of it"
        )
        raise OutOfMemoryError(message, planned, planned)
    nbytes, second = halved
    try:
        return attempted(site, second)
    except Exception as error:
        if not lacks_memory(error):
            raise
        # operands on workers take as much in any blocks
        half = format_bytes(nbytes)
        other = half if nbytes < planned else "as much in smaller blocks"
        message = (
            f"{plan.title} ran out of memory twice: with {text} planned on each device, and with "
            f"{other}; set dgpu.memory.limit to less than {half}"
        )
        raise OutOfMemoryError(message, planned, nbytes) from error


def _execute_passes(
    calls: Sequence[BatchCall], plan: Plan, out: Any, shared: Shared, progress: bool
) -> None:
    """Compute calls that follow each other; write the result of the last one to ``out``."""
    source: Any = None
    temporaries = targets(calls, out, lambda call: temporary(call.shape, call.dtype))
    for i, (call, each, target) in enumerate(
        zip(calls, plan.pass_plans or (plan,), temporaries, strict=True), 1
    ):
        try:
            sink = Sink(call, target, in_place=target is source)
            _execute(call.reading(source) if i > 1 else call, each, sink, shared, progress)
        except Exception as error:
            if len(calls) > 1:
                error.add_note(f"dask_dgpu.run: this was pass {i} of {len(calls)}")
            raise
        source = target


def _execute(call: BatchCall, plan: Plan, sink: Sink, shared: Shared, progress: bool) -> None:
    """Compute a call and write its result; a batch that fails writes nothing.

    After a ``MemoryError`` or the loss of a worker the parts that are not written are computed in
    smaller batches, once. The error of a batch gets a note that says how many parts were written.
    """
    if prod(call.shape) == 0:
        return
    notation, work = call.notation, _Work(call, sink, shared, progress)

    def smaller(is_lost: bool) -> Any:
        most = SHARE * plan.peak_bytes
        lengths = choose(notation, call.peak, notation.batches, most)
        nbytes = call.peak(lengths)
        if nbytes > most and not is_lost:
            return None
        shared.clear()
        tiles = list(_rest(call, plan, lengths, sink))
        return nbytes, partial(work.run, len(tiles), iter(tiles), lengths)

    first = partial(work.run, plan.batches, notation.tiles(plan.lengths), plan.lengths)
    try:  # while a part is written, nobody knows what is written
        twice(call.site, plan, first, smaller, lambda: not sink.is_writing)
    except Exception as error:
        if plan.batches > 1:
            error.add_note(
                f"dask_dgpu.run: {len(sink.written)} parts of the result were written, "
                f"of {call.operation.name} in {plan.batches} batches"
            )
        raise


def _rest(call: BatchCall, plan: Plan, smaller: Lengths, sink: Sink) -> Iterator[Tile]:
    """Yield smaller tiles of those parts of the result that are not written."""
    notation = call.notation
    whole = {label: notation.sizes[label] for label in notation.contracted}
    for part in notation.tiles({**plan.lengths, **whole}):
        if notation.write_spans(call.shape, part) not in sink.written:
            yield from notation.tiles(smaller, part)


@dataclass(frozen=True)
class _Batch:
    """A batch that is being computed.

    All that it reads stays until it has ended: Dask cannot compute scattered blocks again, and a
    graph may reach the scheduler after the release of its inputs.
    """

    tile: Tile
    read: list[Any]
    handle: Any


@dataclass
class _Work:
    """Batches of a call, and where their results go.

    ``last`` are the place and the array of each operand of the batch that was loaded last, and
    ``sum`` are the partial results that were added.
    """

    call: BatchCall
    sink: Sink
    shared: Shared
    progress: bool
    last: dict[int, tuple[Place, Any]] = field(default_factory=dict)
    sum: Sum | None = None

    def run(self, count: int, tiles: Iterator[Tile], lengths: Lengths) -> None:
        """Compute batches of at most these lengths and write their results."""
        site, stay, self.sum = self.call.site, self.call.staying(lengths), None
        started: deque[_Batch] = deque()
        ahead: Future[list[Any]] | None = None
        total: Any = None
        with (
            ThreadPoolExecutor(1, "dgpu-load") as loading,
            bar(self.call.operation.name, count, self.progress) as advance,
        ):
            try:
                for tile, following in pairwise(chain(tiles, [None])):
                    assert tile is not None
                    if ahead is None:
                        self._write(started, advance)
                        arrays = self._load(tile, stay)
                    else:
                        arrays = ahead.result()
                    started.append(self._start(tile, arrays, total))
                    adds = self.call.adds_on_devices and not self.call.notation.ends_sums(tile)
                    total = started[-1].handle if adds else None
                    arrays, ahead = [], None
                    if len(started) > 1:
                        site.wait(started[0].handle)
                        started[0].read.clear()
                    if following is not None and self._keeps(following, stay):
                        ahead = loading.submit(self._load, following, stay)
                    self._write(started, advance, but=1)
                self._write(started, advance)
            except BaseException:
                for batch in started:
                    site.cancel(batch.handle)
                    batch.read.clear()
                arrays, ahead, total = [], None, None  # frames of the error hold these too
                raise
            finally:
                loading.shutdown()
                self.last.clear()

    def _keeps(self, tile: Tile, stay: Collection[int]) -> bool:
        """Whether a batch reads the same parts of the operands that stay."""
        places = self._places(tile)
        return all(self.last[at][0] == places[at] for at in stay)

    def _load(self, tile: Tile, stay: Collection[int]) -> list[Any]:
        """Return the operands of a batch as Dask arrays.

        Those that stay are loaded first: they are larger, and windows are made for the first.
        """
        places, last = self._places(tile), self.last
        for at in sorted(range(len(places)), key=lambda at: at not in stay):
            if last.get(at, (None,))[0] != places[at]:
                last.pop(at, None)
                last[at] = places[at], self._loaded(at, places[at])
        return [last[i][1] for i in range(len(places))]

    def _places(self, tile: Tile) -> list[Place]:
        """Return identity, spans and chunks of each operand."""
        call = self.call
        operands = call.operands
        spans = [
            call.notation.read_spans(i, operand.shape, tile) for i, operand in enumerate(operands)
        ]
        shapes = [tuple(hi - lo for lo, hi in span) for span in spans]
        sources = (id(operand.source) for operand in operands)
        return list(zip(sources, spans, call.chunks(shapes), strict=True))

    def _loaded(self, at: int, place: Place) -> Any:
        """Return a part of an operand, kept for other calls if they share the operand."""
        operand, (_, spans, chunks) = self.call.operands[at], place
        nbytes = prod(hi - lo for lo, hi in spans) * operand.dtype.itemsize
        return self.shared.get(
            place, nbytes, lambda: self.call.site.load(operand.read(spans), chunks)
        )

    def _start(self, tile: Tile, arrays: list[Any], total: Any) -> _Batch:
        """Begin a batch; its result is added to the ``total`` of those before, if there is one."""
        call = self.call
        result = call.of(arrays)
        trims = call.notation.trims(call.shape, tile)  # of the halos of operands
        if any(trim != slice(None) for trim in trims):
            result = result[trims]
        if total is not None:
            result = total + result
        return _Batch(tile, [*arrays, total], call.site.start(result))

    def _write(self, started: deque[_Batch], advance: Callable[[], None], but: int = 0) -> None:
        """Write the results of batches, but for the last ones."""
        while len(started) > but:
            self._finish(started[0])
            started.popleft()
            advance()

    def _finish(self, batch: _Batch) -> None:
        """Write a result, once it has all terms of its sums."""
        call, site, part = self.call, self.call.site, self.call.notation.summed(batch.tile)
        is_last = call.notation.ends_sums(batch.tile)
        if call.adds_on_devices and not is_last:
            site.wait(batch.handle)
            site.release(batch.handle)
        elif call.adds_on_devices or part == batch.tile:
            self.sink.write(part, list(site.blocks(batch.handle, self.sink.room(part))))
        else:
            spans = call.notation.write_spans(call.shape, part)
            shape = tuple(hi - lo for lo, hi in spans)
            self.sum = self.sum or Sum(shape, call.dtype, call.notation.combine)
            self.sum.add(site.blocks(batch.handle), call.notation.weight(batch.tile))
            if is_last:
                everything = tuple(slice(0, n) for n in shape)
                self.sink.write(part, [(everything, self.sum.value())])
                self.sum = None
