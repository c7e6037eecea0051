"""A call of an operation on host arrays, at a site: its notation, its parts and their bytes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import ceil, isqrt, prod
from typing import Any

import numpy as np
from dask.array.core import Array

from dask_dgpu.algorithms.pencil_fft.plan import even_chunks
from dask_dgpu.arguments import expected
from dask_dgpu.batches.held import held, tasks_of
from dask_dgpu.batches.notation import Lengths, Notation
from dask_dgpu.batches.operations import Operation, of_nothing
from dask_dgpu.batches.plan import Part
from dask_dgpu.batches.rules import Arguments
from dask_dgpu.batches.sinks import check_no_overlap, check_out
from dask_dgpu.batches.sites import Site
from dask_dgpu.batches.sources import (
    Chunks,
    Operand,
    Shape,
    Slot,
    array_of,
    largest_nbytes,
    regions,
)

COPIES = 2
"""Parts of an operand, and of the result, on a device: one of them is being transferred.

An operand that stays for several batches has one part: its next one is loaded between batches.
"""
PIECE = 4 << 20
"""Bytes of a block in this process: a thread's temporaries stay in the cache."""
MOST_PIECES = 64
"""Most blocks of a batch in this process."""


@dataclass(frozen=True)
class Request:
    """An operation, its arguments with a :class:`Slot` for each array, and where it is computed."""

    operation: Operation
    args: tuple[Any, ...]
    options: Mapping[str, Any]
    operands: tuple[Operand, ...]
    site: Site

    @classmethod
    def made(
        cls,
        operation: Operation,
        args: Sequence[Any],
        options: Mapping[str, Any],
        site: Site,
        make: Callable[[str, Any], Operand | None],
    ) -> Request:
        """Return the request; ``make`` returns an operand for arguments that are one."""
        plain: set[str] = set()
        if (count := operation.arrays) is not None and operation.ufunc is None:
            plain |= {*list(inspect.signature(operation.function).parameters)[count:]}
            plain |= {f"arrays[{i}]" for i in range(count, len(args))}
        operands: list[Operand] = []

        def slot(name: str, value: Any) -> Any:
            operand = None if name in plain else make(name, value)
            if operand is None:
                return value
            operands.append(operand)
            return Slot(len(operands) - 1)

        positional = tuple(slot(f"arrays[{i}]", value) for i, value in enumerate(args))
        named = {name: slot(name, value) for name, value in options.items()}
        if not operands:
            expected("arrays", "at least one array with axes", tuple(args), TypeError)
        return cls(operation, positional, named, tuple(operands), site)

    @property
    def title(self) -> str:
        """The operation, shapes and dtypes."""
        return f"{self.operation.name} of {', '.join(map(str, self.operands))}"

    @property
    def values(self) -> dict[str, Any]:
        """The arguments by name, those of ufuncs by number."""
        if self.operation.ufunc is not None:
            return {str(i): value for i, value in enumerate(self.args)} | dict(self.options)
        signature = inspect.signature(self.operation.function)
        try:
            bound = signature.bind(*self.args, **self.options)
        except TypeError as error:
            raise TypeError(f"expected the arguments of {self.operation.name}: {error}") from None
        bound.apply_defaults()
        return dict(bound.arguments)

    def of(self, arrays: Sequence[Any], function: Callable[..., Any] | None = None) -> Any:
        """Return what the operation, or another function, returns for arrays as operands."""

        def filled(value: Any) -> Any:
            return arrays[value.at] if isinstance(value, Slot) else value

        options = {name: filled(value) for name, value in self.options.items()}
        return (function or self.operation.function)(*map(filled, self.args), **options)

    def check_casts(self, **out: Any) -> None:
        """Raise NumPy's error if a ufunc's ``casting`` forbids the casts of its operands."""
        ufunc = self.operation.ufunc
        if ufunc is not None and "casting" in self.options:
            empty = [np.empty(0, operand.source.dtype) for operand in self.operands]
            self.of(empty, partial(of_nothing, ufunc, **out))

    def target(self, out: Any, shape: Shape, dtype: Any) -> Any:
        """Return the array for a result: ``out``, once it is checked, or a new one."""
        if out is None:
            return np.empty(shape, dtype)
        check_out(out, shape)
        self.check_casts(out=np.empty(0, out.dtype))
        casting = self.options.get("casting") if self.operation.ufunc is not None else None
        if not np.can_cast(dtype, out.dtype, casting or "same_kind"):
            raise TypeError(f"expected out of a dtype that can hold {dtype}, got {out.dtype}")
        named = {f"arrays[{i}]": value for i, value in enumerate(self.args)} | dict(self.options)
        read = {
            name: self.operands[value.at].source if isinstance(value, Slot) else value
            for name, value in named.items()
        }
        check_no_overlap({"out": out}, read)
        return out


@dataclass(frozen=True)
class BatchCall(Request):
    """A call of an operation that has index notation."""

    notation: Notation
    shape: Shape
    dtype: np.dtype[Any]
    temporaries: int

    @classmethod
    def planned(cls, request: Request) -> BatchCall | None:
        """Return the call, ``None`` if it cannot go in batches; raise as the operation does."""
        operation, operands = request.operation, request.operands
        if operation.rule is None:
            return None
        values = request.values
        if operation.check is not None:
            operation.check(operands)
        request.check_casts()
        result = request.of([_placeholder(operand) for operand in operands])
        shapes = tuple(operand.shape for operand in operands)
        notation = operation.rule(Arguments(shapes, values, result.shape))
        if notation is None:
            return None
        layers = len(result.dask.layers) - len(operands)
        temporaries = layers if operation.temporaries is None else operation.temporaries
        if operation.doubled and result.dtype.char in "fF":
            temporaries += 2  # a copy in double precision
        own = (notation, result.shape, result.dtype, max(0, temporaries))
        return cls(operation, request.args, request.options, operands, request.site, *own)

    def reading(self, source: Any) -> BatchCall:
        """Return the call with another array as its only operand."""
        return replace(self, operands=(replace(self.operands[0], source=source),))

    def chunks(self, shapes: Sequence[Shape]) -> tuple[Chunks, ...]:
        """Return the chunks of parts of operands, of these shapes.

        Operands with a label in common have equal chunks along it. Of the others each rank of a
        cluster gets an even share.
        """
        counts, parts = self._counts(shapes), []
        for axes, shape in zip(self.notation.inputs, shapes, strict=True):
            each = [counts.get(label, 1) for label in axes]
            if not counts.keys() & axes:
                each[shape.index(max(shape))] = self.site.ranks
            parts.append(tuple(map(even_chunks, shape, each)))
        return tuple(parts)

    def _counts(self, shapes: Sequence[Shape]) -> dict[int | None, int]:
        """Return the number of chunks along labels: of a mesh, or along the one best divided."""
        notation, site = self.notation, self.site
        if self.operation.is_product:
            return _mesh(notation, site.ranks, self.options.get("strategy", "auto"))
        pairs = list(zip(notation.inputs, shapes, strict=True))
        every = {at: n for axes, shape in pairs for at, n in zip(axes, shape, strict=True)}
        axes, shape = max(pairs, key=lambda each: prod(each[1]))
        sizes = {label: every[label] for label in axes if label is not None}
        itemsize = max(operand.dtype.itemsize for operand in self.operands)
        parts = min(MOST_PIECES, max(1, ceil(prod(shape) * itemsize / PIECE)))
        wanted = parts if site.in_process else site.ranks
        enough = {label: size for label, size in sizes.items() if size >= wanted}
        apart = {label: size for label, size in enough.items() if label not in notation.halos}
        choice = apart or (sizes if site.in_process else enough)
        return {max(choice, key=choice.__getitem__): wanted} if choice else {}

    def part_shapes(self, lengths: Lengths) -> tuple[Shape, ...]:
        """Return the largest part of each operand."""
        pairs = zip(self.notation.inputs, self.operands, strict=True)
        return tuple(self.notation.part_shape(axes, each.shape, lengths) for axes, each in pairs)

    @property
    def adds_on_devices(self) -> bool:
        """Whether parts of a contraction are added where they are computed.

        In this process nothing is transferred, and half precision is added in single.
        """
        return self.operation.is_product and not self.site.in_process and self.dtype.itemsize > 2

    def graph(self, lengths: Lengths) -> Array:
        """Return the result of the largest batch, without data."""
        shapes = self.part_shapes(lengths)
        arrays = [
            _without_data(operand.dtype, chunks)
            for operand, chunks in zip(self.operands, self.chunks(shapes), strict=True)
        ]
        result: Array = self.of(arrays)
        if self.adds_on_devices and self._is_summed(lengths):
            result = _without_data(result.dtype, result.chunks) + result
        return result

    def parts(self, lengths: Lengths) -> tuple[Part, ...]:
        """Return what the device with the most holds at the peak.

        These are parts of operands and of the result, two if one is transferred, and workspace:
        temporaries as large as a block for each thread.
        """
        notation, site = self.notation, self.site
        shapes = self.part_shapes(lengths)
        chunks = self.chunks(shapes)
        parts: list[Part] = []
        once = block = 0
        for i, (each, shape) in enumerate(zip(self.operands, shapes, strict=True)):
            copies = COPIES if notation.moves(i, lengths) else 1
            count = prod(map(len, chunks[i]))
            nbytes = -(-prod(shape) * each.dtype.itemsize // min(site.ranks, count))
            parts.append(Part(each.name, shape, copies, copies * nbytes))
            once += nbytes
            block = max(block, prod(map(max, chunks[i])) * each.dtype.itemsize)
        shape = notation.part_shape(notation.output, self.shape, lengths, halo=False)
        copies = COPIES if notation.batches(lengths) > 1 else 1
        whole = prod(shape) * self.dtype.itemsize
        nbytes = -(-whole // min(site.ranks, max(1, prod(shape))))
        parts.append(Part("result", shape, copies, copies * nbytes))
        if site.in_process and self._is_summed(lengths):
            wide = 2 if self.dtype.itemsize == 2 else 1  # half precision is added in single
            parts.append(Part("partial results", shape, 2, 2 * nbytes * wide))
        counts, axes = self._counts(shapes), zip(notation.output, shape, strict=True)
        largest = -(-whole // prod(max(1, min(counts.get(at, 1), n)) for at, n in axes))
        if self.operation.is_product:  # Dask adds partial products, even one
            workspace = largest + (self.temporaries - 1) * block
        else:
            at_a_time = min(site.threads, max(prod(map(len, chunk)) for chunk in chunks))
            workspace = self.temporaries * at_a_time * max(block, largest)
            workspace += self.operation.kept * once
        if site.ranks > 1:
            workspace += once + nbytes  # blocks of other ranks
        parts.append(Part("workspace", (), 1, workspace))
        if site.in_process:
            parts += self._read_parts(shapes)
        return tuple(parts)

    def _read_parts(self, shapes: Sequence[Shape]) -> Iterator[Part]:
        """Yield what reading and computing operands takes beside their parts."""
        reads = list(zip(self.operands, shapes, strict=True))
        if chunks := max((each.bytes_beside(shape) for each, shape in reads), default=0):
            yield Part("chunks that are read", (), 1, chunks)
        copied = (_copied(x, shapes[at]) + nbytes for at, x, nbytes in self._computed)
        if blocks := sum(copied):
            yield Part("blocks of Dask arrays", (), 1, blocks)

    @cached_property
    def _computed(self) -> list[tuple[int, Array, int]]:
        """The operands that threads compute, and the bytes that they hold meanwhile."""
        held_bytes = []
        for i, x in enumerate(operand.source for operand in self.operands):
            if isinstance(x, Array):
                usual = largest_nbytes(x.chunks, x.dtype.itemsize)
                held_bytes.append((i, x, held(tasks_of(x), x, self.site.threads, usual).nbytes))
        return [held_byte for held_byte in held_bytes if held_byte[-1]]

    def peak(self, lengths: Lengths) -> int:
        """Return the bytes of all parts."""
        return sum(part.nbytes for part in self.parts(lengths))

    def traffic(self, lengths: Lengths) -> int:
        """Return the bytes read from operands and written to the result, in all batches."""
        notation = self.notation
        partial = prod(notation.count(label, lengths) for label in notation.contracted)
        fetched = 1 if self.adds_on_devices else partial
        written = prod(self.shape) * self.dtype.itemsize * fetched
        return self.reads(range(len(self.operands)), lengths) + written

    def reads(self, operands: Iterable[int], lengths: Lengths) -> int:
        """Return the bytes read from some operands, in all batches."""
        pairs = ((at, self.operands[at]) for at in operands)
        return sum(
            self.notation.reads(at, each.shape, lengths) * each.dtype.itemsize for at, each in pairs
        )

    def staying(self, lengths: Lengths) -> list[int]:
        """Return the operands of which several batches in turn, or the only one, read a part."""
        return [i for i, _ in enumerate(self.operands) if not self.notation.moves(i, lengths)]

    def names(self, lengths: Lengths) -> dict[str, int]:
        """Return the axes that are cut and their longest parts, the innermost loop first."""
        names = ["the result", *(operand.name for operand in self.operands)]
        axes = (self.notation.output, *self.notation.inputs)
        places: dict[int | None, str] = {}
        for name, labels in zip(names, axes, strict=True):
            for i, label in enumerate(labels):
                places.setdefault(label, f"axis {i} of {name}")
        order = reversed(self.notation.order(lengths))
        return {places[label]: self.notation.longest(label, lengths) for label in order}

    def _is_summed(self, lengths: Lengths) -> bool:
        return any(self.notation.count(each, lengths) > 1 for each in self.notation.contracted)


def _copied(array: Array, shape: Shape) -> int:
    """Return the bytes of the blocks from which a part of this shape is copied."""
    pairs = zip(array.chunks, shape, strict=True)
    spans = [min(sum(sizes), n + 2 * (max(sizes) - 1)) for sizes, n in pairs]
    return prod(spans) * array.dtype.itemsize


def _placeholder(operand: Operand) -> Array:
    return _without_data(operand.dtype, tuple((size,) for size in operand.shape))


def _without_data(dtype: np.dtype[Any], chunks: Chunks) -> Array:
    """Return an array whose blocks are only declared."""
    return array_of({index: None for index, _ in regions(chunks)}, chunks, dtype)


def _mesh(notation: Notation, ranks: int, strategy: str) -> dict[int | None, int]:
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
    counts: dict[int | None, int]
    counts = dict.fromkeys(notation.contracted, columns if strategy == "auto" else several)
    return counts | dict(zip(last, along if len(last) == 2 else (max(along),), strict=False))
