"""The operations of a graph: what computes each one, why, and what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import isnan
from typing import TYPE_CHECKING, Any

from dask.core import reverse_dict

from dask_dgpu.cost.table import quantity
from dask_dgpu.observe.explain.runs import notes
from dask_dgpu.planner.decisions import Rewriting, made_by
from dask_dgpu.planner.predict import NO_MEETING, ONE_PROCESS, LayerCost, Plain, most_received
from graph_opt.model.layout import counted
from graph_opt.model.names import LEVEL, label
from graph_opt.model.reader import OPTED_OUT, DescribedReader, OperationLayers

if TYPE_CHECKING:
    from dask_dgpu.runtime.execute import Span

GANG, FUSED, DASK = "gang", "fused", "Dask"
"""What computes an operation."""

LOCAL = "each rank on its blocks"
STREAM = "Dask computes block after block"


@dataclass(frozen=True)
class Operation:
    """An operation of a graph, or the same one of several iterations of a loop.

    Parameters
    ----------
    name : str
        The layer of its result.
    operation : str
        Its name in the user's words.
    by : {"gang", "fused", "Dask"}
        What computes it.
    why : str
        The algorithm, or the reason.
    summary : str
        Shapes and dtypes.
    inputs : tuple of str
        The layers of the operations that it reads.
    gang : int or None
        The number of its gang.
    times : int
        The iterations of a loop that this stands for; bytes and seconds are sums.
    tasks : int or None
        Tasks on the scheduler, ``None`` within a gang of several operations.
    moved_bytes : int or None
        Bytes that the busiest rank or worker receives.
    peak_bytes : int or None
        Peak memory of a rank.
    seconds : float or None
        Predicted seconds.
    measured : float or None
        Measured seconds of the slowest rank.
    hidden : float or None
        Seconds that transfers continued behind other work.
    exposed : float or None
        Seconds of transfers behind which nothing ran.
    sent_bytes : int or None
        Bytes that all ranks sent.
    """

    name: str
    operation: str
    by: str
    why: str
    summary: str = ""
    inputs: tuple[str, ...] = ()
    gang: int | None = None
    times: int = 1
    tasks: int | None = None
    moved_bytes: int | None = None
    peak_bytes: int | None = None
    seconds: float | None = None
    measured: float | None = None
    hidden: float | None = None
    exposed: float | None = None
    sent_bytes: int | None = None

    def with_run(self, steps: Iterable[Span]) -> Operation:
        """Return the operation with the measured values of its steps."""
        spans = list(steps)
        if not spans:
            return self
        recordings = (step.recorded for step in spans if step.recorded is not None)
        texts = [f"recorded: {n} steps in {quantity(s, 's')}" for n, s in recordings]
        texts += filter(None, map(notes, spans))
        own = [step.seconds for step in spans if step.recorded is None or step.seconds]
        return replace(
            self,
            why="; ".join(filter(None, [self.why, *dict.fromkeys(texts)])),
            measured=known_sum(own),
            hidden=known_sum(step.hidden for step in spans),
            exposed=known_sum(step.exposed for step in spans),
            sent_bytes=sum(step.sent_bytes for step in spans),
        )


class Finder:
    """Says for each operation of a rewritten graph what computes it.

    ``outside`` is the cost of what is not in gangs, and ``runs`` are the measured steps of each
    gang.
    """

    def __init__(
        self,
        rewriting: Rewriting[DescribedReader],
        outside: Plain,
        runs: Sequence[Sequence[Span]],
    ) -> None:
        reader, regions = rewriting.reader, rewriting.regions
        self._rewriting, self._outside, self._runs, self._reader = rewriting, outside, runs, reader
        self._layers = reader.layers_of(rewriting.graph)
        self._readers = reverse_dict(reader.dependencies)
        self._words = {name: step.word for step in reader.steps for name in step.layers}
        self._regions = {
            name: i for i, (region, _) in enumerate(regions) for name in made_by(region)
        }
        works = (work for region, _ in regions for work in region.works)
        self._works = {work.output.name: work.layer for work in works}  # Dask's layers in gangs
        self._declined = {each.name: each.reason for each in rewriting.declined}
        self._reasons = {**rewriting.left, **self._declined}
        self._rewritten = {piece.output.name for piece in rewriting.pieces}
        pieces = chain(reader.matches.pieces, rewriting.pieces)
        self._pieces = {p.output.name: p for p in pieces}  # the latter for used blocks only
        firsts = (step.layers[0] for step in reader.steps if not self._calls_others(step))
        self._sizes = Counter(map(self._computed_by, firsts))
        """The number of operations that each layer of the rewritten graph computes."""

    def operations(self) -> list[Operation]:
        """Return all operations, those of a gang together."""
        operations = [*enumerate(map(self._operation, self._reader.steps))]
        gangs = reversed([(at, each.gang) for at, each in operations if each.gang is not None])
        first: dict[int | None, int] = {gang: at for at, gang in gangs}
        operations.sort(key=lambda pair: first.get(pair[1].gang, pair[0]))
        return [each for _, each in operations]

    def _computed_by(self, name: str) -> str:
        """Return the layer of the rewritten graph, or of a gang, that computes a layer."""
        while name not in self._regions and name not in self._layers and self._readers[name]:
            name = min(self._readers[name])
        return name

    def _operation(self, step: OperationLayers) -> Operation:
        target = self._computed_by(step.name)
        piece, node, summary = self._pieces.get(step.name), step.node, ""
        if piece is not None:
            summary = piece.summary
        elif node is not None:
            summary = f"{_shape(node.shape)} {node.dtype} in {counted(node.blocks, 'block')}"
        plain = Operation(step.name, step.word, DASK, "", summary, step.inputs)
        declined = [self._declined[name] for name in step.layers if name in self._declined]
        if target in self._regions and declined and step.name not in self._rewritten:
            why = f"{declined[-1]}; a gang joins the parts"
            return replace(plain, why=why, gang=self._regions[target])
        if target in self._regions:
            return self._in_gang(plain, step, target)
        costs = self._costs(step)
        for name in (*step.layers, target):
            if self._is_kernel(self._layers.get(name)):
                return replace(plain, by=FUSED, why=self._kernel(step, name), **costs)
        return replace(plain, why=self._reason(step, target), **costs)

    def _in_gang(self, plain: Operation, step: OperationLayers, target: str) -> Operation:
        at = self._regions[target]
        _, prediction = self._rewriting.regions[at]
        labels = {label(name) for name in step.layers}
        known = [step for step in prediction.steps if LEVEL.sub("", step.name) in labels]
        if not known:
            return replace(plain, by=GANG, why=self._joined(step, target), gang=at)
        peaks = [each.peak_bytes for each in known if each.peak_bytes is not None]
        moved = most_received(known)
        operation = replace(
            plain,
            by=GANG,
            why=", then ".join(dict.fromkeys(each.text for each in known if each.text)) or LOCAL,
            gang=at,
            seconds=sum(each.seconds for each in known),
            moved_bytes=moved if moved or peaks else None,
            peak_bytes=max(peaks, default=None),
        )
        return operation.with_run(
            run for run in self._runs[at] if LEVEL.sub("", run.name) in labels
        )

    def _calls_others(self, step: OperationLayers) -> bool:
        """Whether an operation calls a function of the user, which no kernel has."""
        return any(map(self._reader.calls_users, step.layers))

    def _is_kernel(self, layer: Any) -> bool:
        return layer is not None and self._reader.is_kernel(layer)

    def _joined(self, step: OperationLayers, target: str) -> str:
        """Return how another operation computes this one."""
        with_it = self._words.get(target, "others")
        if self._calls_others(step):
            return f"a call for each block, then {with_it}"
        layer = self._works.get(target, self._layers.get(target))
        return f"in one {'kernel' if self._is_kernel(layer) else 'task'} with {with_it}"

    def _kernel(self, step: OperationLayers, target: str) -> str:
        if target in step.layers:
            kernel = f"one kernel for {counted(self._sizes[target], 'operation')}"
            return kernel if target == step.name else f"{kernel}, then Dask"
        return self._joined(step, target)

    def _costs(self, step: OperationLayers) -> dict[str, Any]:
        outside = self._outside.layers
        known = [outside[name] for name in step.layers if name in outside]
        if not known:
            return {"tasks": 0}
        return {name: sum(getattr(each, name) for each in known) for name in LayerCost._fields}

    def _reason(self, step: OperationLayers, target: str) -> str:
        """Return why Dask computes an operation."""
        given = [self._reasons[name] for name in (*step.layers, target) if name in self._reasons]
        fault = self._reader.fault(step)
        if given and fault != OPTED_OUT:
            return given[-1] if step.name in self._reasons else given[0]
        if fault is not None:
            return fault
        if all(map(self._reader.is_map, step.layers)):
            return NO_MEETING
        return ONE_PROCESS if self._rewriting.own_left else STREAM


def _shape(shape: Sequence[float]) -> str:
    sizes = ["?" if isnan(size) else str(size) for size in shape]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def known_sum(values: Iterable[float | None]) -> Any:
    """Return the sum of the values that are known, ``None`` if none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
