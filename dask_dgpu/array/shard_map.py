"""Functions that run once on each rank of a gang, on shards of Dask arrays.

Examples
--------
>>> import dask.array as da, dask_dgpu as dgpu
>>> def softmax(comm, x):
...     import numpy as np
...
...     powers = np.exp(x - comm.all_reduce(x.max(), "max"))
...     return powers / comm.all_reduce(powers.sum())
>>> x = da.arange(6.0, chunks=2)
>>> y = dgpu.shard_map(softmax, out=x)(x)
>>> float(y.sum().compute().round(12))
1.0
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import cloudpickle
import dask
import dask.array as da
import numpy as np
from dask.array.core import Array
from dask.utils import funcname

from dask_dgpu.algorithms.shard_map.comm import ShardComm
from dask_dgpu.algorithms.shard_map.plan import ShardMapTask, place_of, shards
from dask_dgpu.algorithms.shard_map.rank import called
from dask_dgpu.arguments import (
    as_array,
    check_chunk_sizes,
    check_container,
    check_dtype,
    expected,
    integer,
    sequence,
)
from dask_dgpu.array.chunks import rechunked
from dask_dgpu.comm.local import run_local
from dask_dgpu.kinds import of_either_kind
from dask_dgpu.optimizer import GraphOptimizer
from graph_opt.dask_graph.layers import array_of, deferred
from graph_opt.model.layout import Cuts, cuts_of
from graph_opt.pieces.shard_map import ShardMapPiece

Block = Any
Axis = int | None


def shard_map(
    f: Callable[..., Any], *, out: Any, in_: int | tuple[int | None, ...] | None = 0
) -> Callable[..., Array]:
    """Return a function of Dask arrays that calls ``f`` once on each rank.

    Parameters
    ----------
    f : callable
        ``f(comm, *local_arrays)``. ``comm`` is a :class:`ShardComm`: the rank, the number of ranks
        and collectives between them. The arrays are this rank's shards, NumPy's on CPUs and
        CuPy's on GPUs; it must not write to them. It returns this rank's shard of the result. It
        works for any number of ranks, and is pickled as Dask's functions are.
    out : dask.array.Array or tuple
        An array whose shape and dtype the result has, or ``(shape, dtype)``: it is cut along the
        first axis. ``(shape, dtype, axis)`` names the axis; with ``None`` each rank returns the
        same whole array.
    in_ : int, None, or tuple of these, optional
        The axis along which the arrays are cut, for all or for each of them. With ``None`` each
        rank has the whole array.

    Returns
    -------
    callable
        It takes as many arrays as ``f`` takes besides ``comm``, of any chunks and at least one
        axis, and returns a Dask array. Nothing runs before that is computed.

    Raises
    ------
    TypeError
        If ``f`` is no function, or an axis no integer.
    ValueError
        If an axis does not exist, or at the call, if an array has no axes or unknown chunk sizes,
        or there are more or fewer entries of ``in_`` than arrays.

    Notes
    -----
    A shard has the elements ``comm.bounds(n)`` of an axis of n elements: ranks have equal numbers,
    give or take one, or none if there are more ranks than elements. An array with one chunk on
    each worker, cut there, is not copied. Ranks are the workers of the cluster; without a
    cluster, and where no gang is formed, they are threads of one task, which reads all blocks.

    If a worker is lost, the gang starts again with those that are left, from its arguments: ``f``
    has no effect beyond its result. An exception of ``f`` is raised where the result is computed.
    The names are those of ``jax.shard_map``.

    Examples
    --------
    >>> import dask.array as da, numpy as np, dask_dgpu as dgpu
    >>> def columns_sum(comm, x, weights):
    ...     return comm.all_reduce((x * weights).sum(0))
    >>> x, weights = da.ones((4, 3), chunks=2), da.arange(3)
    >>> step = dgpu.shard_map(columns_sum, in_=(0, None), out=((3,), "f8", None))
    >>> step(x, weights).compute().tolist()
    [0.0, 4.0, 8.0]
    """
    if not callable(f):
        expected("f", "a function", f, TypeError)
    shape, dtype, axis = _declared(out)
    text, name = cloudpickle.dumps(f), funcname(f)
    along = tuple(_axis("in_", each) for each in in_) if isinstance(in_, tuple) else None
    every = None if along is not None else _axis("in_", in_)

    @of_either_kind
    @functools.wraps(f, updated=())
    def call(*arrays: Any) -> Array:
        if not arrays:
            raise ValueError(f"expected at least 1 array for {name}, got 0")
        given = [as_array(f"array {i}", array) for i, array in enumerate(arrays)]
        axes = (every,) * len(given) if along is None else along
        if len(axes) != len(given):
            raise ValueError(f"expected {len(axes)} arrays, one for each of in_, got {len(given)}")
        checked = []
        for i, (x, where) in enumerate(zip(given, axes, strict=True)):
            check_chunk_sizes(f"array {i}", x)
            check_dtype(f"array {i}", x, what="numbers or bools")
            check_container(f"array {i}", x)
            if not x.ndim:
                raise ValueError(f"expected array {i} with at least 1 axis, got 0")
            checked.append(_existing("in_", where, x.ndim))
        task = ShardMapTask(text, name, tuple(checked), axis)
        ends: tuple[Cuts, ...] = tuple((0, n) for n in shape)
        chunks = tuple(map(tuple, shards(ends, axis, _ranks()).lengths))
        return deferred(
            "shard_map",
            tuple(given),
            chunks,
            dtype.name,
            task,
            lambda output, nodes: ShardMapPiece(output, nodes, task, forced=True),
            expand,
        )

    return call


def _declared(out: Any) -> tuple[tuple[int, ...], np.dtype[Any], Axis]:
    """Return the shape, the dtype and the axis of a result."""
    what = "an array, (shape, dtype) or (shape, dtype, axis)"
    if isinstance(out, tuple):
        if len(out) not in (2, 3):
            expected("out", what, out)
        shape, dtype, *axes = out
        where = _axis("out", axes[0] if axes else 0)
    elif hasattr(out, "shape") and hasattr(out, "dtype"):
        shape, dtype, where = out.shape, out.dtype, 0
    else:
        expected("out", what, out, TypeError)
    lengths = sequence("the shape of out", shape, "a sequence of integers")
    lengths = tuple(integer("each length of out", n, 0) for n in lengths)
    kind = np.dtype(dtype)
    if kind.kind not in "biufc":
        raise TypeError(f"expected out to be of numbers or bools, got {kind}")
    return lengths, kind, _existing("out", where, len(lengths))


def _axis(name: str, axis: Any) -> Axis:
    return None if axis is None else integer(f"the axis of {name}", axis)


def _existing(name: str, axis: Axis, ndim: int) -> Axis:
    """Return an axis, counted from the first; raise if there is no such axis."""
    if axis is None:
        return None
    if not -ndim <= axis < ndim:
        raise ValueError(f"expected the axis of {name} to be one of {ndim} axes, got {axis}")
    return axis % ndim


def _ranks() -> int:
    """Return the number of ranks there will probably be."""
    optimizer = dask.config.get("array_optimize", None)
    if not isinstance(optimizer, GraphOptimizer):
        return 1
    return optimizer.facts.workers or optimizer.settings.local_ranks


def expand(piece: ShardMapPiece) -> Array:
    """Call the function in one task of plain Dask, with ranks as threads."""
    task, output = piece.task, piece.output
    pairs: list[Any] = []
    first = output.ndim
    for node in piece.sources:
        whole = rechunked(array_of(node), tuple((n,) for n in node.shape))
        pairs += [whole, tuple(range(first, first + node.ndim))]
        first += node.ndim
    y = da.blockwise(
        run_threads,
        tuple(range(output.ndim)),
        *pairs,
        new_axes=dict(enumerate(output.shape)),
        concatenate=True,
        dtype=output.dtype,
        meta=np.empty((0,) * output.ndim, output.dtype),
        task=task,
        cuts=tuple(map(cuts_of, output.chunks)),
        result=output.dtype,
    )
    return rechunked(y, output.chunks)


def run_threads(*blocks: Block, task: ShardMapTask, cuts: tuple[Cuts, ...], result: str) -> Block:
    """Return the whole result for whole arguments; there is a rank for each block of it."""
    size = 1 if task.axis is None else len(cuts[task.axis]) - 1
    layouts = [
        shards(tuple((0, n) for n in block.shape), axis, size)
        for block, axis in zip(blocks, task.axes, strict=True)
    ]
    whole = shards(cuts, task.axis, size)

    def on_rank(comm: Any) -> Block:
        local = []
        for block, axis, layout in zip(blocks, task.axes, layouts, strict=True):
            place = place_of(axis, block.ndim, comm.rank)
            ends = (cut[at : at + 2] for cut, at in zip(layout.cuts, place, strict=True))
            local.append(block[tuple(slice(*end) for end in ends)])
        shape = whole.block_shape(place_of(task.axis, whole.ndim, comm.rank))
        ranks = ShardComm(comm, functools.partial(np.asarray, like=blocks[0]))
        return called(task, ranks, local, shape, result)

    results = run_local(size, on_rank)
    return results[0] if task.axis is None else np.concatenate(results, axis=task.axis)
