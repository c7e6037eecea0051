"""Expressions on CuPy blocks, on the current stream: what is launched is planned once a kind.

A plan follows from the expression and from dtype, shape, strides and alignment of the blocks.
Kernels are fewer than plans: their source knows no lengths. Blocks of one kind share launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import cupy
import numpy as np

from dask_dgpu.kernels.fused.kernel import Array as Described
from dask_dgpu.kernels.fused.kernel import Launch
from dask_dgpu.kernels.fused.launching import Kernels
from dask_dgpu.kernels.fused.nodes import node_value
from dask_dgpu.kernels.fused.plan import ByModule, planned
from graph_opt.model.expression import Apply, Expression, Input

Array = Any
Values = dict[int, Array]
"""Of the nodes that are arrays."""

MOST_PLANS = 512


class Calls(NamedTuple):
    """All that is called for an expression."""

    inputs: tuple[tuple[int, int], ...]  # nodes and their blocks
    steps: tuple[Kernels | ByModule, ...]

    @property
    def most(self) -> int:
        """The most blocks of one kind to call it for at once; modules have temporary blocks."""
        most = [step.launch.most if isinstance(step, Kernels) else 1 for step in self.steps]
        return min(most, default=1)


Key = tuple[tuple[Any, tuple[int, ...], tuple[int, ...], int], ...]


def evaluate_cuda(expression: Expression, blocks: Sequence[Array]) -> tuple[Array, ...]:
    """Evaluate an expression on CuPy blocks, on the current stream; as ``fused.evaluate``."""
    blocks = _arrays(blocks)
    calls = _calls(expression, _key(blocks), cupy.cuda.runtime.getDevice())
    return _evaluated(expression, calls, [blocks])[0]


def evaluate_all_cuda(
    expression: Expression, several: Sequence[Sequence[Array]]
) -> list[tuple[Array, ...]]:
    """Evaluate an expression on many blocks; as ``fused.evaluate_all``."""
    kinds: dict[Key, list[int]] = {}
    given = [_arrays(blocks) for blocks in several]
    for i, blocks in enumerate(given):
        kinds.setdefault(_key(blocks), []).append(i)
    by_number: dict[int, tuple[Array, ...]] = {}
    for key, places in kinds.items():
        calls = _calls(expression, key, cupy.cuda.runtime.getDevice())
        for first in range(0, len(places), calls.most):
            some = places[first : first + calls.most]
            results = _evaluated(expression, calls, [given[at] for at in some])
            by_number |= dict(zip(some, results, strict=True))
    return [by_number[i] for i in range(len(given))]


def _arrays(blocks: Sequence[Array]) -> list[Array]:
    return [x if isinstance(x, cupy.ndarray) else cupy.asarray(x) for x in blocks]


def _key(blocks: Sequence[Array]) -> Key:
    return tuple([(x.dtype, x.shape, x.strides, x.data.ptr % 16) for x in blocks])


def _evaluated(
    expression: Expression, calls: Calls, several: Sequence[Sequence[Array]]
) -> list[tuple[Array, ...]]:
    """Return the results for one block, or for several of one kind."""
    stream = cupy.cuda.get_current_stream().ptr
    every: list[Values] = [{at: blocks[of] for at, of in calls.inputs} for blocks in several]
    for step in calls.steps:
        if isinstance(step, Kernels):
            _launch(step, every, stream)
        else:
            for values in every:
                values[step.node] = _by_module(expression, step, values)
    return [tuple([_result(expression, at, each) for at in expression.results]) for each in every]


@lru_cache(maxsize=MOST_PLANS)
def _calls(expression: Expression, key: Key, device: int) -> Calls:
    """Return what is called; compile what is new."""
    del device  # kernels belong to one
    described = [
        Described(dtype, shape, tuple([stride // dtype.itemsize for stride in strides]), aligned)
        for dtype, shape, strides, aligned in key
    ]
    return Calls(
        tuple((i, node.at) for i, node in enumerate(expression.nodes) if isinstance(node, Input)),
        tuple(
            Kernels(step) if isinstance(step, Launch) else step
            for step in planned(expression, described)
        ),
    )


def _launch(kernels: Kernels, all_values: Sequence[Values], stream: int) -> None:
    """Allocate the results of a launch, and launch it."""
    launch = kernels.launch
    written = [
        [cupy.ndarray(output.allocated, output.dtype) for _ in all_values]
        for output in launch.outputs
    ]
    arrays = [[values[node].data.ptr for values in all_values] for node in launch.operands]
    arrays += [[array.data.ptr for array in each] for each in written]
    if launch.workspace is not None:
        length = launch.workspace
        memory = cupy.ndarray(length * len(all_values), np.int8) if length else None
        start = memory.data.ptr if memory is not None else 0
        arrays.append([start + i * length for i in range(len(all_values))])
    kernels.call(arrays, stream)
    for output, several in zip(launch.outputs, written, strict=True):
        for values, array in zip(all_values, several, strict=True):
            values[output.node] = output.restored(array)


def _by_module(expression: Expression, step: ByModule, values: Values) -> Array:
    """Evaluate a node by CuPy's own function, as a contiguous array of NumPy's dtype."""
    node, (dtype, shape, *_) = expression.nodes[step.node], step.array
    if 0 in shape:
        return cupy.empty(shape, dtype)
    arguments = [_result(expression, at, values) for at in node.arguments]
    if isinstance(node, Apply) and node.function == "where":
        arguments[0] = cupy.asarray(arguments[0])  # it takes no number
    return cupy.asarray(node_value(node, arguments, cupy), dtype, order="C").reshape(shape)


def _result(expression: Expression, at: int, values: Values) -> Array:
    """Return the array of a node, or the view of one or the number that it is."""
    if at in values:
        return values[at]
    node = expression.nodes[at]
    return node_value(node, [_result(expression, of, values) for of in node.arguments], cupy)
