"""Lowering: which steps a gang runs for a piece, one function for each kind of piece."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

from dask_dgpu.runtime.program import Collective, Local
from dask_dgpu.runtime.value import Value
from graph_opt.fourier import Fourier
from graph_opt.layout import cuts_of
from graph_opt.node import ArrayNode
from graph_opt.piece import Piece
from graph_opt.product import Product
from graph_opt.redistribution import Redistribution


@dataclass(frozen=True)
class Steps:
    """The part of a program that depends on the piece alone; see ``Program``."""

    inputs: tuple[tuple[str, Value], ...]
    steps: tuple[Local | Collective, ...]
    output: str
    kept: tuple[tuple[int, ...], ...] | None


@singledispatch
def lower(piece: Piece, device: str) -> Steps:
    """Return the steps for a piece on ``"cpu"`` or ``"cuda"``."""
    raise NotImplementedError(f"no gang computes a {type(piece).__name__}")


@lower.register
def _product(piece: Product, device: str) -> Steps:
    part = piece.part
    a, b, c = (_whole(node) for node in (part.left, part.right, part.output))
    steps: tuple[Local | Collective, ...] = (Collective("summa", ("a", "b"), "c", c),)
    if device == "cuda" and piece.left.container == "numpy.ndarray":
        steps = (Local("to_device", "a"), Local("to_device", "b"), *steps, Local("to_host", "c"))
    return Steps((("a", a), ("b", b)), steps, "c", piece.kept)


@lower.register
def _redistribution(piece: Redistribution, device: str) -> Steps:
    before = Value(piece.cuts[0], piece.source.dtype, piece.staged[0])
    after = Value(piece.cuts[1], piece.output.dtype, piece.wanted)
    steps: list[Local | Collective] = [Collective("redistribute", ("a",), "b", after)]
    if piece.transposes:
        steps.insert(0, Local("transpose", "a", piece.axes))
    return Steps((("a", before),), tuple(steps), "b", None)


@lower.register
def _fourier(piece: Fourier, device: str) -> Steps:
    a, b = _whole(piece.source), _whole(piece.output)
    steps: tuple[Local | Collective, ...] = (Collective("pencil_fft", ("a",), "b", b, piece.plan),)
    if device == "cuda" and piece.source.container == "numpy.ndarray":
        steps = (Local("to_device", "a"), *steps, Local("to_host", "b"))
    return Steps((("a", a),), steps, "b", None)


def _whole(node: ArrayNode) -> Value:
    return Value(tuple(cuts_of(sizes) for sizes in node.chunks), node.dtype)
