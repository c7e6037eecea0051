"""The blocks that a gang copies between the host and GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from dask_dgpu.operations.value import Collective, Local, Value
from dask_dgpu.runtime.program import Program
from graph_opt.model.layout import NUMPY, Index

Read = tuple[str, Iterable[Index]]
"""Some blocks of a value."""


def host_bytes(program: Program) -> int:
    """Return the bytes of blocks that all ranks, on GPUs, copy to them and back."""
    values = dict(program.inputs) | {step.output: step.result for step in program.steps}
    return sum(
        values[name].nbytes(index) for name, blocks in _copied(program, values) for index in blocks
    )


def _copied(program: Program, values: Mapping[str, Value]) -> Iterator[Read]:
    """Yield what a program copies between host and device.

    Collectives compute on the device, and functions that return NumPy blocks on the host.
    """
    on_host = {name for name, value in program.inputs if value.container == NUMPY}
    for step in program.steps:
        is_here = isinstance(step, Local) and step.result.container == NUMPY
        yield from (read for read in _reads(step, values) if (read[0] in on_host) != is_here)
        if is_here:
            on_host.add(step.output)
        elif isinstance(step, Collective):
            on_host -= {*step.inputs}  # the copies take the place of the blocks
    for name, blocks in program.outputs:
        if values[name].container == NUMPY and name not in on_host:
            yield name, blocks


def _reads(step: Collective | Local, values: Mapping[str, Value]) -> Iterator[Read]:
    """Yield the blocks of each input that a step reads."""
    needs = {need for each in step.needs for need in each} if isinstance(step, Local) else set()
    for at, name in enumerate(dict.fromkeys(step.inputs)):
        own = [index for number, index in needs if number == at]
        yield name, own if isinstance(step, Local) else values[name].indices()
