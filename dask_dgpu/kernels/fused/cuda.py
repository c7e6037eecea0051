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
from dask_dgpu.kernels.fused.kernel import Launch, contiguous
from dask_dgpu.kernels.fused.launching import Kernels
from dask_dgpu.kernels.fused.nodes import node_value
from dask_dgpu.kernels.fused.plan import ByModule, planned
from graph_opt.model.expression import Apply, Constant, Expression, Input, View

Array = Any
Values = dict[int, Array]
"""Of the nodes that are arrays."""

MOST_PLANS = 512


class Calls(NamedTuple):
    """All that is called for an expression."""

    inputs: tuple[tuple[int, int], ...]  # nodes and their blocks
    copied: frozenset[int]  # blocks that are not aligned to their elements
    steps: tuple[Kernels | ByModule, ...]

    @property
    def most(self) -> int:
        """The most blocks of one kind to call it for at once."""
        if self.copied or any(isinstance(step, ByModule) for step in self.steps):
            return 1  # these have temporary blocks
        return min(
            (step.launch.most for step in self.steps if isinstance(step, Kernels)), default=1
        )


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
    for at, blocks in enumerate(given):
        kinds.setdefault(_key(blocks), []).append(at)
    found: dict[int, tuple[Array, ...]] = {}
    for key, places in kinds.items():
        calls = _calls(expression, key, cupy.cuda.runtime.getDevice())
        for first in range(0, len(places), calls.most):
            some = places[first : first + calls.most]
            results = _evaluated(expression, calls, [given[at] for at in some])
            found |= dict(zip(some, results, strict=True))
    return [found[at] for at in range(len(given))]


def _arrays(blocks: Sequence[Array]) -> list[Array]:
    return [x if isinstance(x, cupy.ndarray) else cupy.asarray(x) for x in blocks]


def _key(blocks: Sequence[Array]) -> Key:
    return tuple([(x.dtype, x.shape, x.strides, x.data.ptr % 16) for x in blocks])


def _evaluated(
    expression: Expression, calls: Calls, several: Sequence[Sequence[Array]]
) -> list[tuple[Array, ...]]:
    """Return the results for one block, or for several of one kind."""
    stream = cupy.cuda.get_current_stream().ptr
    copied = calls.copied
    all_values: list[Values] = [
        {at: blocks[of] if of not in copied else _aligned(blocks[of]) for at, of in calls.inputs}
        for blocks in several
    ]
    for step in calls.steps:
        if isinstance(step, Kernels):
            _launch(step, all_values, stream)
        else:
            for values in all_values:
                values[step.node] = _by_module(expression, step, values)
    return [
        tuple([_result(expression, at, values) for at in expression.results])
        for values in all_values
    ]


def _aligned(block: Array) -> Array:
    """Return a contiguous copy of a block, by its bytes: elements may lie at any address."""
    shape, strides = (*block.shape, block.itemsize), (*block.strides, 1)
    parts = cupy.ndarray(shape, np.uint8, block.data, strides)
    return parts.copy().view(block.dtype)[..., 0]


@lru_cache(maxsize=MOST_PLANS)
def _calls(expression: Expression, key: Key, device: int) -> Calls:
    """Return what is called; compile what is new."""
    del device  # kernels belong to one
    copied = set()
    described = []
    for at, (dtype, shape, strides, aligned) in enumerate(key):
        size = dtype.itemsize
        if any(stride % size for stride in strides) or aligned % min(size, 16):
            copied.add(at)
            strides, aligned = contiguous(shape), 0
        else:
            strides = tuple(stride // size for stride in strides)
        described.append(Described(dtype, shape, strides, aligned))
    steps = planned(expression, described)
    return Calls(
        tuple((at, node.at) for at, node in enumerate(expression.nodes) if isinstance(node, Input)),
        frozenset(copied),
        tuple(Kernels(step) if isinstance(step, Launch) else step for step in steps),
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
        arrays.append([start + at * length for at in range(len(all_values))])
    kernels.call(arrays, stream)
    for output, several in zip(launch.outputs, written, strict=True):
        for values, array in zip(all_values, several, strict=True):
            values[output.node] = output.restored(array)


def _by_module(expression: Expression, step: ByModule, values: Values) -> Array:
    """Evaluate a node by CuPy's own function, as a contiguous array of NumPy's dtype."""
    node, (dtype, shape, *_) = expression.nodes[step.node], step.array
    if 0 in shape:
        return cupy.empty(shape, dtype)
    arguments = [_argument(expression, at, values) for at in node.arguments]
    if isinstance(node, Apply) and node.function == "where":
        arguments[0] = cupy.asarray(arguments[0])  # it takes no number
    return cupy.asarray(node_value(node, arguments, cupy), dtype, order="C").reshape(shape)


def _argument(expression: Expression, at: int, values: Values) -> Any:
    node = expression.nodes[at]
    return node.value if isinstance(node, Constant) else _result(expression, at, values)


def _result(expression: Expression, at: int, values: Values) -> Array:
    """Return the array of a node, or the view of one that it is."""
    node = expression.nodes[at]
    if isinstance(node, View) and at not in values:
        return node_value(node, [_result(expression, node.argument, values)], cupy)
    return values[at]
