"""One executor: batches of a plan, one loaded and one written while another is computed."""

from __future__ import annotations

import gc
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise
from math import prod
from threading import Lock, Timer
from typing import Any

from dask.utils import format_bytes

from dask_dgpu.batches.call import Call, Request
from dask_dgpu.batches.notation import Lengths, Tile, choose
from dask_dgpu.batches.plan import Plan
from dask_dgpu.batches.planning import in_passes, plan_passes, targets
from dask_dgpu.batches.sinks import Sink, selected, temporary
from dask_dgpu.batches.sites import Site
from dask_dgpu.batches.whole import Whole
from dask_dgpu.batches.windows.client import LostError
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


class Batches:
    """A context manager that draws a bar of ``total`` steps after a moment, also before the first.

    Nothing is drawn unless ``shown``.
    """

    def __init__(self, title: str, total: int, shown: bool = True) -> None:
        self._bars = counting_bars(stderr=True)
        self._task = self._bars.add_task(title, total=total)
        self._timer = Timer(MOMENT, self._bars.start)
        self._timer.daemon = True
        self._shown = shown

    def __enter__(self) -> Batches:
        """Return itself."""
        if self._shown:
            self._timer.start()
        return self

    def advance(self) -> None:
        """Count a step."""
        self._bars.advance(self._task)

    def __exit__(self, *error: object) -> None:
        """Stop drawing."""
        if self._shown:
            self._timer.cancel()
            self._timer.join()  # it may be about to draw
        if self._bars.live.is_started:
            self._bars.stop()


class Shared:
    """Keeps whole operands that several calls read, within a limit, the last used ones.

    ``identities`` are those of the operands of all calls.
    """

    def __init__(self, identities: Iterable[int] = (), limit: float = 0) -> None:
        self.identities = {each for each, calls in Counter(identities).items() if calls > 1}
        self.limit = limit
        self._kept: OrderedDict[Place, tuple[int, Any]] = OrderedDict()
        self._lock = Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept."""
        return sum(nbytes for nbytes, _ in self._kept.values())

    def get(self, place: Place, nbytes: int, load: Callable[[], Any]) -> Any:
        """Return an operand, loaded at its first use; others wait meanwhile."""
        if place[0] not in self.identities or nbytes > self.limit:
            return load()
        with self._lock:
            if place not in self._kept:
                while self._kept and self.nbytes + nbytes > self.limit:
                    self._kept.popitem(last=False)
                self._kept[place] = nbytes, load()
            self._kept.move_to_end(place)
            return self._kept[place][1]

    def clear(self) -> None:
        """Drop all operands: they need memory, or were on a worker that was lost."""
        with self._lock:
            self._kept.clear()


def compute(request: Request, room: float, out: Any, shared: Shared, *, progress: bool) -> Any:
    """Plan a request within ``room`` bytes of each device, and compute it."""
    call = Call.planned(request)
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
    site = request.site
    before = site.gone
    try:
        whole = Whole.planned(request, room)
    except Exception as error:
        if not site.lost(before, error):
            raise
        whole = None
    if whole is None:  # a worker was lost while operands were sent
        gc.collect()  # frames of the error hold operands
        whole = Whole.planned(request, room)
    _check_fits(whole.plan)
    result = whole.result
    target = request.target(out, result.shape, result.dtype) if whole.is_lazy else out

    def attempt(whole: Whole) -> Any:
        try:
            with Batches(request.operation.name, whole.blocks, progress) as bar:
                return whole.compute(target, bar.advance)
        except BaseException:
            whole.drop()
            raise

    def smaller(is_lost: bool) -> Any:
        found = Whole.planned(request, SHARE * min(room, whole.plan.peak_bytes))
        if not is_lost and found.chunks == whole.chunks:
            found.drop()
            return None
        return found.plan.peak_bytes, partial(attempt, found)

    return twice(site, whole.plan, partial(attempt, whole), smaller)


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
    before = site.gone
    try:
        return first()
    except Exception as error:
        is_lost = bool(site.lost(before, error)) or isinstance(error, LostError)
        if not (may_repeat() and (is_lost or lacks_memory(error))):
            raise
    gc.collect()  # frames of the error hold arrays
    found = smaller(is_lost)
    if found is None:
        raise _out_of_memory(plan, None)
    nbytes, second = found
    before = site.gone
    try:
        return second()
    except Exception as error:
        if lost := site.lost(before, error):
            message = f"lost {', '.join(sorted(lost))} while batches were computed"
            raise LostError(message) from error
        if not lacks_memory(error):
            raise
        raise _out_of_memory(plan, nbytes) from error


def _out_of_memory(plan: Plan, again: int | None) -> OutOfMemoryError:
    """Return the error of a plan, and of ``again`` bytes for a second attempt."""
    planned, first = plan.peak_bytes, format_bytes(plan.peak_bytes)
    if again is None:
        message = (
            f"{plan.title} ran out of memory with {first} planned on each device, and cannot be "
            "cut to half of it"
        )
        return OutOfMemoryError(message, planned, planned)
    second = format_bytes(again)
    # operands on workers take as much in any blocks
    smaller = second if again < planned else "as much in smaller blocks"
    message = (
        f"{plan.title} ran out of memory twice: with {first} planned on each device, and with "
        f"{smaller}; set dgpu.memory.limit to less than {second}"
    )
    return OutOfMemoryError(message, planned, again)


def _execute_passes(
    calls: Sequence[Call], plan: Plan, out: Any, shared: Shared, progress: bool
) -> None:
    """Compute calls that follow each other; write the result of the last one to ``out``."""
    source: Any = None
    found = targets(calls, out, lambda call: temporary(call.shape, call.dtype))
    for at, (call, each, target) in enumerate(
        zip(calls, plan.pass_plans or (plan,), found, strict=True), 1
    ):
        try:
            sink = Sink(call, target, in_place=target is source)
            _execute(call.reading(source) if at > 1 else call, each, sink, shared, progress)
        except Exception as error:
            if len(calls) > 1:
                error.add_note(f"dask_dgpu.run: this was pass {at} of {len(calls)}")
            raise
        source = target


def _execute(call: Call, plan: Plan, sink: Sink, shared: Shared, progress: bool) -> None:
    """Compute a call and write its result; a batch that fails writes nothing.

    After a ``MemoryError`` or the loss of a worker the parts that are not written are computed in
    smaller batches, once. The error of a batch gets a note that says how many parts were written.
    """
    if prod(call.shape) == 0:
        return
    notation, work = call.notation, _Work(call, sink, shared, progress)

    def smaller(is_lost: bool) -> Any:
        lengths = choose(notation, call.peak, notation.batches, SHARE * plan.peak_bytes)
        if lengths is None and not is_lost:
            return None
        sink.drop()
        shared.clear()
        lengths = lengths or dict.fromkeys(notation.sizes, 1)
        tiles = list(_rest(call, plan, lengths, sink))
        return call.peak(lengths), partial(work.run, len(tiles), iter(tiles), lengths)

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


def _rest(call: Call, plan: Plan, smaller: Lengths, sink: Sink) -> Iterator[Tile]:
    """Yield smaller tiles of those parts of the result that are not written."""
    notation = call.notation
    parts = {
        notation.write_spans(call.shape, tile): notation.summed(tile)
        for tile in notation.tiles(plan.lengths)
    }
    for spans, tile in parts.items():
        if spans not in sink.written:
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
        loader = _Loader(call, self.shared, call.staying(lengths))
        ahead: Future[list[Any]] | None = None
        total: Any = None
        with (
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
            finally:
                loading.shutdown()
                loader.last.clear()
        self.sink.finish()

    def _start(self, tile: Tile, arrays: list[Any], total: Any, following: Tile | None) -> _Batch:
        """Begin a batch; its result is added to the ``total`` of those before, if there is one."""
        call = self.call
        result = call.of(arrays)
        trims = call.notation.trims(call.shape, tile)  # of the halos of operands
        if any(trim != slice(None) for trim in trims):
            result = result[trims]
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
        """Write a result, unless the next batch adds to it."""
        call, site, tile = self.call, self.call.site, batch.tile
        if batch.adds:
            site.wait(batch.handle)
            site.release(batch.handle)
            return
        if call.adds_on_devices:  # to the results of all batches of this part
            tile = call.notation.summed(tile)
        self.sink.add(tile, list(site.blocks(batch.handle, self.sink.room(tile))))


@dataclass
class _Loader:
    """Loads the operands of batches, and keeps those that the next batch reads too.

    ``stay`` are the operands that several batches in turn read.
    """

    call: Call
    shared: Shared
    stay: Collection[int]
    last: dict[int, tuple[Any, Any]] = field(default_factory=dict)

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

    def _places(self, tile: Tile) -> list[Place]:
        """Return identity, spans and chunks of each operand."""
        call = self.call
        operands = call.operands
        spans = [call.notation.read_spans(at, each.shape, tile) for at, each in enumerate(operands)]
        shapes = [tuple(hi - lo for lo, hi in each) for each in spans]
        sources = (id(each.source) for each in operands)
        return list(zip(sources, spans, call.chunks(shapes), strict=True))

    def _load(self, at: int, place: Place) -> Any:
        operand, site = self.call.operands[at], self.call.site
        _, spans, chunks = place

        def load() -> Any:
            return site.load(operand.read(spans), chunks)

        is_whole = spans == tuple((0, size) for size in operand.shape)
        return self.shared.get(place, operand.nbytes, load) if is_whole else load()
