"""Lowering: the step of a program for each member of a region."""

from __future__ import annotations

from dask_dgpu.operations.step import Collective, Local
from dask_dgpu.operations.value import Value
from graph_opt.model.layout import Index, cuts_of
from graph_opt.model.node import ArrayNode
from graph_opt.pieces.region import Blockwork, Member


def lower(member: Member) -> Collective | Local:
    """Return the step for a piece or a layer of Dask's; values have the arrays' names."""
    output, result = member.output.name, value_of(member.output, member.computed)
    names = tuple(node.name for node in member.inputs)
    if not isinstance(member, Blockwork):
        return Collective(member.operation, names, output, result, member.task)
    at = {name: place for place, name in enumerate(names)}
    needs = tuple(
        tuple((at[name], need) for name, need in needs) for needs in member.needs.values()
    )
    return Local(names, output, result, needs, member.once)


def value_of(node: ArrayNode, blocks: tuple[Index, ...]) -> Value:
    """Return an array as a value of a program, with all of its blocks or some."""
    some = None if len(blocks) == node.blocks else blocks
    cuts = tuple(cuts_of(sizes) for sizes in node.chunks)
    return Value(cuts, node.dtype, some, node.container)
