"""Lowering: which steps a gang runs, one function for each kind of member of a region."""

from __future__ import annotations

from functools import singledispatch
from typing import cast

from dask_dgpu.algorithms.kahan_sum import Summing
from dask_dgpu.kernels.sums.partial import Exact, Kind
from dask_dgpu.operations.step import Collective, Local
from dask_dgpu.operations.value import Value
from graph_opt.model.layout import Index, cuts_of
from graph_opt.model.node import ArrayNode
from graph_opt.pieces.fft import Fourier
from graph_opt.pieces.matmul import Product
from graph_opt.pieces.overlap import Halo
from graph_opt.pieces.rechunk import Redistribution
from graph_opt.pieces.region import Blockwork, Member
from graph_opt.pieces.stencil import Sweeping
from graph_opt.pieces.sum import Summation


@singledispatch
def lower(member: Member) -> Collective | Local:
    """Return the step for a piece, or for a layer of Dask's own; values have the arrays' names."""
    raise NotImplementedError(f"no gang computes a {type(member).__name__}")


@lower.register
def _product(piece: Product) -> Collective:
    names = piece.left.name, piece.right.name
    return Collective("summa", names, piece.output.name, _result(piece), piece.kept)


@lower.register
def _redistribution(piece: Redistribution) -> Collective:
    axes = piece.axes if piece.transposes else None
    names = (piece.source.name,)
    return Collective("redistribute", names, piece.output.name, _result(piece), axes)


@lower.register
def _fourier(piece: Fourier) -> Collective:
    names = (piece.source.name,)
    return Collective("pencil_fft", names, piece.output.name, _result(piece), piece.plan)


@lower.register
def _sweeping(piece: Sweeping) -> Collective:
    names = tuple(source.name for source in piece.sources)
    return Collective(piece.task.algorithm, names, piece.output.name, _result(piece), piece.task)


@lower.register
def _halo(piece: Halo) -> Collective:
    names, task = (piece.source.name,), (piece.depth, piece.boundary)
    return Collective("halo", names, piece.output.name, _result(piece), task)


@lower.register
def _summation(piece: Summation) -> Collective:
    method, kind = cast(Exact, piece.method), cast(Kind, piece.kind)
    task = Summing(piece.axes, piece.keepdims, method, kind)
    names = (piece.source.name,)
    return Collective("kahan_sum", names, piece.output.name, _result(piece), task)


@lower.register
def _blockwork(work: Blockwork) -> Local:
    at = {node.name: place for place, node in enumerate(work.inputs)}
    return Local(
        inputs=tuple(at),
        output=work.output.name,
        result=_result(work),
        needs=tuple(
            tuple((at[name], need) for name, need in needs) for needs in work.needs.values()
        ),
        once=work.once,
    )


def _result(member: Member) -> Value:
    return value_of(member.output, member.computed)


def value_of(node: ArrayNode, blocks: tuple[Index, ...]) -> Value:
    """Return an array as a value of a program, of which there are some blocks or all."""
    some = None if len(blocks) == node.blocks else blocks
    cuts = tuple(cuts_of(sizes) for sizes in node.chunks)
    return Value(cuts, node.dtype, some, node.container)
