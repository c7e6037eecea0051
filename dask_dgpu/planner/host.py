"""The blocks that a gang copies between the host and GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dask_dgpu.operations.operation import Node, Value
from dask_dgpu.runtime.program import Program
from graph_opt.model.layout import NUMPY, Index

Read = tuple[int, Iterable[Index]]
"""Some blocks of a value."""


def host_bytes(program: Program) -> int:
    """Return the bytes of blocks that all ranks, on GPUs, copy to them and back."""
    return sum(
        program.values[number].nbytes(index)
        for number, blocks in _copied(program)
        for index in blocks
    )


def _copied(program: Program) -> Iterator[Read]:
    """Yield what a program copies between host and device.

    Collectives compute on the device, and functions that return NumPy blocks on the host.
    """
    values = program.values
    on_host = {at for at, value in enumerate(program.inputs) if value.container == NUMPY}
    for number, node in program.numbered.items():
        is_here = node.operation is None and node.value.container == NUMPY
        yield from (read for read in _reads(node, values) if (read[0] in on_host) != is_here)
        if is_here:
            on_host.add(number)
        elif node.operation is not None:
            on_host -= {*node.reads}  # the copies take the place of the blocks
    for number, blocks in program.outputs:
        if values[number].container == NUMPY and number not in on_host:
            yield number, blocks


def _reads(node: Node, values: Sequence[Value]) -> Iterator[Read]:
    """Yield the blocks of each input that a node reads."""
    needs = {need for each in node.needs for need in each}
    for at, number in enumerate(dict.fromkeys(node.reads)):
        own = [index for place, index in needs if place == at]
        yield number, own if node.operation is None else values[number].indices()
