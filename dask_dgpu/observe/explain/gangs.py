"""The gangs of an explanation in the user's words, with their passes, and their memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dask_dgpu.observe.explain.memory import GangMemory
from dask_dgpu.observe.explain.operations import Operation
from dask_dgpu.planner.predict import Lack, Prediction
from graph_opt.model.names import label
from graph_opt.model.piece import Region


def gangs_of(
    regions: Sequence[tuple[Region, Prediction]],
    operations: Sequence[Operation],
    passes: Mapping[str, str],
) -> Iterator[GangMemory]:
    """Yield the memory of each gang."""
    owners = []
    for region, _ in regions:
        of = {passes.get(piece.output.name) for piece in region.pieces}
        owners.append(of.pop() if len(of) == 1 else None)
    total, number = Counter(owners), Counter[str | None]()
    for at, ((_, prediction), owner) in enumerate(zip(regions, owners, strict=True)):
        counts = Counter(each.operation for each in operations if each.gang == at)
        names = [f"{n} x {name}" if n > 1 else name for name, n in counts.items()]
        number[owner] += 1
        place = (1, 1) if owner is None else (number[owner], total[owner])
        yield GangMemory.of(", ".join(names), prediction, *place)


def named(operations: Sequence[Operation], name: str) -> str:
    """Return the user's word for the operation with this result."""
    return {each.name: each.operation for each in operations}.get(name, label(name))


def left_of(operations: Sequence[Operation], lacks: Mapping[str, Lack]) -> Iterator[GangMemory]:
    """Yield what operations that do not fit need."""
    for name, lack in lacks.items():
        yield replace(GangMemory.of(named(operations, name), lack.prediction), seconds=None)
