"""Expressions on CuPy blocks, on the current stream: what is launched is planned once a kind.

A plan follows from the expression and from dtype, shape, strides and alignment of the blocks.
Kernels are fewer than plans: their source knows no lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import cupy
import numpy as np

from dask_dgpu.kernels.fused.compile import kernel
from dask_dgpu.kernels.fused.kernel import THREADS, Fold, Launch
from dask_dgpu.kernels.fused.kernel import Array as Described
from dask_dgpu.kernels.fused.nodes import evaluate_nodes, node_value
from dask_dgpu.kernels.fused.plan import ByModule, planned
from graph_opt.model.expression import Constant, Expression, Input, View

Array = Any

MOST_PLANS = 512
NOWHERE = np.uint64(0)
THREADS_OF = (THREADS,)


class Result(NamedTuple):
    """An array to allocate for a node, and how it becomes the node's array."""

    node: int
    dtype: np.dtype[Any]
    allocated: tuple[int, ...]
    order: tuple[int, ...] | None  # None if the axes are in order
    shape: tuple[int, ...]

    def restored(self, array: Array) -> Array:
        """Return the view of the allocated array that has the node's axes."""
        return array if self.order is None else array.transpose(self.order).reshape(self.shape)


class Call(NamedTuple):
    """A launch that is ready to go."""

    launch: Callable[..., None]
    fold: Callable[..., None] | None  # the second launch, with ``second``: its grid and scalars
    second: Fold
    grid: tuple[int, ...]
    threads: tuple[int]
    operands: tuple[int, ...]  # nodes
    constants: tuple[Any, ...]
    results: tuple[Result, ...]
    workspace: int | None
    scalars: tuple[Any, ...]


class Calls(NamedTuple):
    """All that is called for an expression."""

    inputs: tuple[tuple[int, int], ...]  # nodes and their blocks
    copied: frozenset[int]  # blocks that are not aligned to their elements
    steps: tuple[Call | ByModule, ...]


Key = tuple[tuple[Any, tuple[int, ...], tuple[int, ...], int], ...]


def evaluate_cuda(expression: Expression, blocks: Sequence[Array]) -> tuple[Array, ...]:
    """Evaluate an expression on CuPy blocks, on the current stream; as ``fused.evaluate``."""
    blocks = [x if isinstance(x, cupy.ndarray) else cupy.asarray(x) for x in blocks]
    key = tuple([(x.dtype, x.shape, x.strides, x.data.ptr % 16) for x in blocks])
    calls = _calls(expression, key, cupy.cuda.runtime.getDevice())
    if calls is None:
        return tuple(map(cupy.asarray, evaluate_nodes(expression, blocks, cupy)))
    values: dict[int, Array] = {}
    for at, of in calls.inputs:
        values[at] = blocks[of] if of not in calls.copied else _aligned(blocks[of])
    for step in calls.steps:
        if isinstance(step, Call):
            _launch(step, values)
        else:
            values[step.node] = _by_module(expression, step, values)
    return tuple([_result(expression, at, values) for at in expression.results])


def _aligned(block: Array) -> Array:
    """Return a contiguous copy of a block, by its bytes: elements may lie at any address."""
    shape, strides = (*block.shape, block.itemsize), (*block.strides, 1)
    parts = cupy.ndarray(shape, np.uint8, block.data, strides)
    return parts.copy().view(block.dtype)[..., 0]


@lru_cache(maxsize=MOST_PLANS)
def _calls(expression: Expression, key: Key, device: int) -> Calls | None:
    """Return what is called, or None if an array is empty; compile what is new."""
    del device  # kernels belong to one
    copied = set()
    described = []
    for at, (dtype, shape, strides, aligned) in enumerate(key):
        size = dtype.itemsize
        if any(stride % size for stride in strides) or aligned % min(size, 16):
            copied.add(at)
            strides, aligned = cupy.empty(shape, np.int8).strides, 0
            steps = strides
        else:
            steps = tuple(stride // size for stride in strides)
        described.append(Described(dtype, shape, steps, aligned))
    plan = planned(expression, described)
    if plan is None:
        return None
    return Calls(
        tuple((at, node.at) for at, node in enumerate(expression.nodes) if isinstance(node, Input)),
        frozenset(copied),
        tuple(_ready(step) if isinstance(step, Launch) else step for step in plan.steps),
    )


def _ready(launch: Launch) -> Call:
    results = []
    for out in launch.outputs:
        order = None if out.order == tuple(range(len(out.order))) else out.order
        allocated = out.shape if order is None else out.lying
        results.append(Result(out.node, out.dtype, allocated, order, out.shape))
    return Call(
        kernel(launch.source, launch.name),
        None if launch.fold is None else kernel(launch.source, "fold"),
        launch.fold or Fold((), ()),
        launch.grid,
        (launch.threads,),
        tuple(operand.node for operand in launch.operands),
        launch.constants,
        tuple(results),
        launch.workspace,
        launch.scalars,
    )


def _launch(call: Call, values: dict[int, Array]) -> None:
    """Allocate the results of a call, and launch it."""
    written = [cupy.ndarray(result.allocated, result.dtype) for result in call.results]
    if call.workspace is not None:
        several = cupy.ndarray(call.workspace, np.int8) if call.workspace else NOWHERE
        arguments = (*written, several)
    else:
        arguments = tuple(written)
    read = [values[node] for node in call.operands]
    call.launch(call.grid, call.threads, (*read, *call.constants, *arguments, *call.scalars))
    if call.fold is not None:
        call.fold(call.second.grid, THREADS_OF, (*arguments, *call.second.scalars))
    for result, array in zip(call.results, written, strict=True):
        values[result.node] = result.restored(array)


def _by_module(expression: Expression, step: ByModule, values: dict[int, Array]) -> Array:
    """Evaluate a node by CuPy's own function, as a contiguous array of NumPy's dtype."""
    node = expression.nodes[step.node]
    arguments = [_argument(expression, at, values) for at in node.arguments]
    found = node_value(node, arguments, cupy)
    return cupy.ascontiguousarray(found, step.array.dtype).reshape(step.array.shape)


def _argument(expression: Expression, at: int, values: dict[int, Array]) -> Any:
    node = expression.nodes[at]
    return node.value if isinstance(node, Constant) else _result(expression, at, values)


def _result(expression: Expression, at: int, values: dict[int, Array]) -> Array:
    """Return the array of a node, or the view of one that it is."""
    node = expression.nodes[at]
    if isinstance(node, View) and at not in values:
        return node_value(node, [_result(expression, node.argument, values)], cupy)
    return values[at]
