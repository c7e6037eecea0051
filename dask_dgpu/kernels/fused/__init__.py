"""Elementwise work and reductions on one device, as one kernel: :func:`evaluate`.

::

    x  ->  x * x * x  ->  tanh  ->  * x      four ufuncs, each goes through memory
    x  --------- one kernel --------> y      one read, one write
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from graph_opt.model.expression import Expression

Array = Any


def evaluate(
    expression: Expression, blocks: Sequence[Array], spare: Collection[int] = ()
) -> tuple[Array, ...]:
    """Evaluate an expression on blocks.

    Parameters
    ----------
    expression : Expression
        What is computed.
    blocks : sequence of array
        One for each input, all of NumPy or all of CuPy; CuPy's on the current stream.
    spare : collection of int, optional
        The numbers of blocks that may be overwritten: nobody else needs their memory. A result may
        be one of them.

    Returns
    -------
    tuple of array
        The results, of the dtypes and shapes that NumPy gives. A result that is an input, or a view
        of one, is in its memory; any other is new, or in the memory of a spare block.

    Notes
    -----
    It raises what NumPy's functions raise. On NumPy blocks elementwise results have the same bits
    as NumPy's, and sums at most the error of its pairwise summation.
    """
    if all(isinstance(block, np.ndarray | np.generic) for block in blocks):
        from dask_dgpu.kernels.fused.host import evaluate_host

        return evaluate_host(expression, blocks, spare=spare)
    from dask_dgpu.kernels.fused.cuda import evaluate_cuda

    return evaluate_cuda(expression, blocks)
