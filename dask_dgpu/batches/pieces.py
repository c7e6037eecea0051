"""Chunks of the operands of a batch, one or more for each rank and thread."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isqrt, prod

from dask_dgpu.algorithms.pencil_fft.plan import even_chunks
from dask_dgpu.batches.blocks import Chunks
from dask_dgpu.batches.notation import Notation
from dask_dgpu.batches.operations import Operation
from dask_dgpu.batches.rules import Shape
from dask_dgpu.batches.sites import Site

PIECE = 4 << 20
"""Bytes of a block in this process: a thread's temporaries stay in the cache."""
MOST_PIECES = 64
"""Most blocks of a batch in this process."""


def pieces(
    operation: Operation,
    notation: Notation,
    shapes: Sequence[Shape],
    itemsize: int,
    site: Site,
    strategy: str = "auto",
) -> tuple[Chunks, ...]:
    """Return the chunks of parts of these ``shapes``, one of each operand.

    Operands with a label in common have equal chunks along it. Of the others each rank of a
    cluster gets an even share. A ``strategy`` of products has blocks to divide.
    """
    if operation.is_product:
        counts = _mesh(notation, site.ranks, strategy)
    else:
        counts = _counts(notation, shapes, itemsize, site)
    found = []
    for axes, shape in zip(notation.inputs, shapes, strict=True):
        each = [counts.get(label, 1) if label is not None else 1 for label in axes]
        if max(each, default=1) == 1 and not any(label in counts for label in axes):
            each[shape.index(max(shape))] = site.ranks
        found.append(tuple(map(even_chunks, shape, each)))
    return tuple(found)


def _counts(
    notation: Notation, shapes: Sequence[Shape], itemsize: int, site: Site
) -> dict[int, int]:
    """Return the number of chunks for labels that have several."""
    sizes = {
        label: size
        for axes, shape in zip(notation.inputs, shapes, strict=True)
        for label, size in zip(axes, shape, strict=True)
        if label is not None
    }
    axes, shape = max(zip(notation.inputs, shapes, strict=True), key=lambda each: prod(each[1]))
    parts = min(MOST_PIECES, ceil(prod(shape) * itemsize / PIECE))
    wanted = parts if site.in_process else site.ranks
    found = {label: sizes[label] for label in axes if label is not None}
    enough = {label: size for label, size in found.items() if size >= wanted}
    apart = {label: size for label, size in enough.items() if label not in notation.halos}
    choice = apart or (found if site.in_process else enough)
    return {max(choice, key=lambda label: choice[label]): wanted} if choice else {}


def _mesh(notation: Notation, ranks: int, strategy: str) -> dict[int, int]:
    """Return the chunks of a product along the last axes of its result, and along contracted ones.

    All ranks are a mesh over the blocks of the result, so it has one for each, and so has the left
    factor. Without a ``strategy`` that needs another, the mesh is as square as possible.
    """
    rows = max(parts for parts in range(1, isqrt(ranks) + 1) if ranks % parts == 0)
    columns, several = ranks // rows, max(2, ranks)
    along = {
        "row": (several, 1),
        "column": (1, several),
        "summa": (max(2, rows), max(2, columns)),
        "inner": (1, 1),
    }.get(strategy, (rows, columns))
    last = [label for label in notation.output[-2:] if label is not None]
    inner = dict.fromkeys(notation.contracted, columns if strategy == "auto" else several)
    return inner | dict(zip(last, along if len(last) == 2 else (max(along),), strict=False))
