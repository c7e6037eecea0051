"""The program of a region: its members as nodes that read values by their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from dask_dgpu.operations.operation import Node, value_of
from dask_dgpu.runtime.program import Blockworks, Launch, Program
from graph_opt.dask_graph.recipes import recipe_of
from graph_opt.model.blockwork import Blockwork
from graph_opt.model.cost import Machine
from graph_opt.model.piece import Member, Region


def lowered(region: Region, machine: Machine, **facts: Any) -> Launch:
    """Return the program of a region, with other ``facts`` of it, and the names of its values."""
    inputs = {node.name: value_of(node, blocks) for node, blocks in region.inputs}
    numbers = {name: number for number, name in enumerate(inputs)}
    nodes: list[Node] = []
    known: dict[Any, Any] = {}  # equal parts of nodes are one object, which is pickled once
    for member in region.members:
        for name, node in _nodes(member, numbers):
            numbers[name] = len(numbers)
            parts = {"value": node.value, "needs": node.needs}
            nodes.append(replace(node, **{k: known.setdefault(x, x) for k, x in parts.items()}))
    block_facts: dict[str, Any] = {}
    recipes = {
        numbers[work.output.name]: recipe_of(
            work.output.name, work.layer, work.computed, numbers, block_facts
        )
        for work in region.works
    }
    outputs = tuple((numbers[name], blocks) for name, blocks in region.wanted)
    program = Program(
        (*inputs.values(),), (*nodes,), outputs, machine, blockworks=Blockworks(recipes), **facts
    )
    return Launch(program, (*numbers,), region.titles)


def _nodes(member: Member, numbers: Mapping[str, int]) -> Iterator[tuple[str, Node]]:
    """Yield the nodes for a piece or a layer of Dask's, each with the name of its value."""
    if not isinstance(member, Blockwork):
        value = value_of(member.output, member.computed)
        reads = tuple(numbers[node.name] for node in member.inputs)
        yield member.output.name, Node(member.operation, reads, value, member.task)
        return
    for work in member.steps:
        known = (*work.inputs, *(step.output for step in work.before))
        read = {name for blocks in work.needs.values() for name, _ in blocks}
        names = [node.name for node in known if node.name in read]
        at = {name: place for place, name in enumerate(names)}
        needs = tuple(
            tuple((at[name], need) for name, need in blocks) for blocks in work.needs.values()
        )
        value, reads = value_of(work.output, work.computed), tuple(map(numbers.__getitem__, names))
        yield work.output.name, Node(None, reads, value, needs=needs, once=work.once)
