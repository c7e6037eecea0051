"""Elementwise work and reductions on one device, as one kernel: :func:`evaluate`.

::

    x  ->  x * x * x  ->  tanh  ->  * x      four ufuncs, each goes through memory
    x  --------- one kernel --------> y      one read, one write
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from dask_dgpu.kernels.fused.host import evaluate_host
from dask_dgpu.kernels.fused.tracer import Trace
from graph_opt.model.expression import Expression

Array = Any

HOST = np.ndarray, np.generic

LARGE = 1 << 17
"""Elements of NumPy blocks from which on functions are called in tiles."""


def evaluate(expression: Expression, blocks: Sequence[Array]) -> tuple[Array, ...]:
    """Evaluate an expression on blocks.

    Parameters
    ----------
    expression : Expression
        What is computed.
    blocks : sequence of array
        One for each input, all of NumPy or all of CuPy; CuPy's on the current stream.

    Returns
    -------
    tuple of array
        The results, of the dtypes and shapes that NumPy gives. A result that is an input, or a view
        of one, is in its memory; any other is new.

    Notes
    -----
    It raises what NumPy's functions raise. On NumPy blocks elementwise results have the same bits
    as NumPy's, and sums at most the error of its pairwise summation.
    """
    if _on_host(blocks):
        return evaluate_host(expression, blocks)
    from dask_dgpu.kernels.fused.cuda import evaluate_cuda

    return evaluate_cuda(expression, blocks)


def evaluate_all(
    expression: Expression, several: Sequence[Sequence[Array]]
) -> list[tuple[Array, ...]]:
    """Evaluate an expression on each of several lists of blocks.

    As :func:`evaluate` for each of them. On a GPU blocks of one kind, with equal dtypes, shapes
    and strides, share launches.
    """
    if any(map(_on_host, several)):
        return [evaluate(expression, blocks) for blocks in several]
    from dask_dgpu.kernels.fused.cuda import evaluate_all_cuda

    return evaluate_all_cuda(expression, several)


def called(
    function: Callable[..., Sequence[Array]], *blocks: Array, **options: Any
) -> Sequence[Array]:
    """Call a function of arrays that returns several; for CuPy's as one kernel if possible.

    It calls NumPy's functions only, and always the same ones for some options, which have a hash.
    """
    if _on_host(blocks) and blocks[0].size < LARGE:
        return function(*blocks, **options)
    kinds = tuple([(block.dtype, block.ndim) for block in blocks])
    return evaluate(traced(function, kinds, **options), blocks)


@lru_cache(maxsize=1024)
def traced(
    function: Callable[..., Sequence[Array]],
    kinds: tuple[tuple[np.dtype[Any], int], ...],
    **options: Any,
) -> Expression:
    """Return what a function computes of arrays of some dtypes and numbers of axes."""
    trace = Trace()
    inputs = [trace.input(np.ones((1,) * ndim, dtype)) for dtype, ndim in kinds]
    return trace.expression(function(*inputs, **options))


def _on_host(blocks: Sequence[Array]) -> bool:
    return all(isinstance(block, HOST) for block in blocks)
