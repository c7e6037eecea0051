"""A contraction as plain Dask: one batched product, or elementwise product, for each step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import accumulate, pairwise
from operator import add
from string import ascii_letters
from typing import Any, cast

import dask.array as da
import numpy as np
from dask.array.core import Array

from dask_dgpu.array.chunks import any_chunks
from dask_dgpu.array.einsum.parse import Subscripts
from dask_dgpu.array.einsum.path import EinsumPath, EinsumStep
from graph_opt.dask_graph.internals import chunk_einsum
from graph_opt.model.layout import real_of


def reduced(x: Array, term: str, wanted: str, dtype: np.dtype[Any]) -> Array:
    """Return an operand with the indices ``wanted``, for a result of this dtype.

    It is converted to that dtype or its real part, so sums do not overflow in a narrower one.
    """
    x = x.astype(dtype if x.dtype.kind == "c" else real_of(dtype))
    while repeated := [index for index in term if term.count(index) > 1]:
        first = term.index(repeated[0])
        second = term.index(repeated[0], first + 1)
        x = da.diagonal(x, axis1=first, axis2=second)
        term = term[:first] + term[first + 1 : second] + term[second + 1 :] + repeated[0]
    dropped = [axis for axis, index in enumerate(term) if index not in wanted]
    summed = tuple(axis for axis in dropped if x.shape[axis] != 1)
    x = _sum(x, summed) if summed else x
    term = "".join(index for axis, index in enumerate(term) if axis not in summed)
    return x[tuple(slice(None) if index in wanted else 0 for index in term)]


def _sum(x: Array, axes: tuple[int, ...]) -> Array:
    return cast(Array, x.sum(axis=axes, dtype=x.dtype))


def contraction(operands: Sequence[Array], subscripts: Subscripts, plan: EinsumPath) -> Array:
    """Return the result of the steps of a plan, for reduced operands of equal chunks."""
    terms, output = subscripts.reduced, subscripts.output
    result = _in_slices(list(operands), terms, output, plan, list(plan.slices.items()))
    lengths = {
        index: sizes
        for x, term in zip(operands, terms, strict=True)
        for index, sizes in zip(term, x.chunks, strict=True)
    }
    return result.rechunk(tuple(lengths[index] for index in output)) if plan.slices else result


def _in_slices(
    operands: list[Array],
    terms: Sequence[str],
    output: str,
    plan: EinsumPath,
    slices: list[tuple[str, tuple[int, ...]]],
) -> Array:
    """Join, or add, the results of slices along the first index, sliced along the others."""
    if not slices:
        return _product(operands, terms, output, plan.steps)
    (index, lengths), *others = slices
    parts = []
    for start, stop in pairwise(accumulate(lengths, initial=0)):
        cut = [
            x[tuple(slice(start, stop) if each == index else slice(None) for each in term)]
            for x, term in zip(operands, terms, strict=True)
        ]
        parts.append(_in_slices(cut, terms, output, plan, others))
    if index in output:
        return cast(Array, da.concatenate(parts, axis=output.index(index)))
    return reduce(add, parts)


def _product(
    operands: list[Array], terms: Sequence[str], output: str, steps: Sequence[EinsumStep]
) -> Array:
    values = list(operands)
    for step in steps:
        left, right = (values[at] for at in step.operands)
        multiply = contracted if step.summed else multiplied
        values.append(multiply(left, right, step))
    term = steps[-1].result if steps else terms[0]
    return cast(Array, values[-1].transpose(tuple(term.index(index) for index in output)))


def multiplied(x: Array, y: Array, step: EinsumStep) -> Array:
    """Multiply elements, of all pairs for indices that only one operand has."""
    with any_chunks():
        return _spread(x, step.left, step.result) * _spread(y, step.right, step.result)


def _spread(x: Array, term: str, result: str) -> Array:
    """Return an operand with the axes of the result, with length one where it has none."""
    x = x.transpose(tuple(term.index(index) for index in result if index in term))
    return x[tuple(slice(None) if index in term else None for index in result)]


def contracted(x: Array, y: Array, step: EinsumStep) -> Array:
    """Multiply, and sum over the indices that the result does not have.

    It has the layers of ``da.einsum``, which a rule takes. That function would split large
    chunks and widen small integers.
    """
    letters = dict(zip(dict.fromkeys(step.left + step.right), ascii_letters, strict=False))
    left, right, result, summed = (
        "".join(letters[index] for index in term)
        for term in (step.left, step.right, step.result, step.summed)
    )
    dtype = np.result_type(x.dtype, y.dtype)
    partial = da.blockwise(
        chunk_einsum,
        tuple(result + summed),
        x,
        tuple(left),
        y,
        tuple(right),
        align_arrays=False,
        adjust_chunks=dict.fromkeys(summed, 1),
        dtype=dtype,
        subscripts=f"{left},{right}->{result}",
        kernel_dtype=None,
        ncontract_inds=len(summed),
        optimize=["einsum_path", (0, 1)],
    )
    return _sum(partial, tuple(range(len(result), len(result + summed))))
