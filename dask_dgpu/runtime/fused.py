"""The function of tasks that evaluate an expression on their blocks."""

from __future__ import annotations

import math
import pickle
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NamedTuple

import cloudpickle
import numpy as np

from dask_dgpu.kernels.fused import called, evaluate, evaluate_all
from dask_dgpu.operations.operation import unboxed
from graph_opt.dask_graph.calls import EXTREMES, Chunked
from graph_opt.dask_graph.fusing import Fusion
from graph_opt.dask_graph.internals import getitem
from graph_opt.dask_graph.readings import Steps
from graph_opt.model.expression import Reduce
from graph_opt.model.layout import Bare, dtype_named

Array = Any
Shape = tuple[int, ...]

MOST_OPENED = 64
"""Number of functions that a process keeps open for further tasks."""


class _Read(NamedTuple):
    """What a call is given: blocks, as ``cuts`` of longer ones, and the place of the result."""

    blocks: list[Array]
    place: Sequence[Any]
    cuts: Sequence[Steps]


@dataclass(frozen=True)
class Fused(Bare):
    """Computes one block of a fusion by one kernel.

    Dask's own tasks run instead for blocks that are of another type or dtype than their array, and
    for empty ones, of which Dask's reductions make an exception.
    """

    fusion: Fusion
    is_stateless: ClassVar[bool] = True

    def __dask_tokenize__(self) -> Any:
        return type(self).__name__, self._text

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle one text, made once: Dask pickles and opens the function with each task."""
        return _opened, (self._text,)

    @cached_property
    def _text(self) -> bytes:
        text: bytes = cloudpickle.dumps(self.fusion)
        return text

    def __call__(self, *given: Any) -> Any:
        """Return the block, or what Dask's aggregate of several blocks reads."""
        read = self._read(given)
        if not _suit(read.blocks, self._dtypes):
            return self.fusion.chain(*read.blocks, *(read.place or (None,)))
        with _ignored() if self._ignores else _NOTHING:
            results = evaluate(self.fusion.expression, read.blocks)
        return self._finished(results, read)

    def together(self, calls: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the results of several calls; on a GPU blocks of one kind share launches."""
        every = [self._read(given) for given in calls]
        if not all(_suit(read.blocks, self._dtypes) for read in every):
            return [self(*given) for given in calls]
        with _ignored() if self._ignores else _NOTHING:
            results = evaluate_all(self.fusion.expression, [read.blocks for read in every])
        return [self._finished(*each) for each in zip(results, every, strict=True)]

    def _read(self, given: Sequence[Any]) -> _Read:
        inputs = len(self._dtypes)
        blocks, place = [_single(block) for block in given[:inputs]], given[inputs:]
        if not self.fusion.cut:
            return _Read(blocks, place, ())
        *place, cuts = place
        blocks = [_sliced(*each) for each in zip(blocks, cuts, strict=True)]
        return _Read(blocks, place, cuts)

    def _finished(self, results: Sequence[Array], read: _Read) -> Any:
        fusion, blocks = self.fusion, read.blocks
        if read.cuts:
            sliced = [block for block, steps in zip(blocks, read.cuts, strict=True) if steps]
            results = tuple(_apart(result, sliced) for result in results)
        if fusion.chunked is None:
            return unboxed(results[0])
        shapes = fusion.expression.shapes([block.shape for block in blocks])
        return _partial(fusion.chunked, results, shapes[fusion.reduced], *read.place)

    @cached_property
    def _dtypes(self) -> tuple[np.dtype[Any], ...]:
        return tuple(map(dtype_named, self.fusion.dtypes))

    @cached_property
    def _ignores(self) -> bool:
        """Whether Dask ignores a warning in its own function: ``nanmin`` or ``nanmax``."""
        nodes = self.fusion.expression.nodes
        functions = {node.function for node in nodes if isinstance(node, Reduce)}
        return not functions.isdisjoint(("nanmin", "nanmax"))


_NOTHING = nullcontext()


@lru_cache(MOST_OPENED)
def _opened(text: bytes) -> Fused:
    """Return the function with a text: the same for all tasks of a worker."""
    fused = Fused(pickle.loads(text))
    vars(fused)["_text"] = text
    return fused


@contextmanager
def _ignored() -> Iterator[None]:
    """Ignore the warning about axes of nothing but NaN."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice encountered", RuntimeWarning)
        yield


def _single(block: Any) -> Any:
    """Return the block within lists of one: Dask gives these for axes that are reduced."""
    while isinstance(block, list) and len(block) == 1:
        (block,) = block
    return block


def _sliced(block: Any, steps: Steps) -> Any:
    """Return a slice of a block, as a view; Dask's own function has a better error."""
    for index in steps:
        try:
            block = block[index]
        except IndexError:
            block = getitem(block, index)
    return block


def _apart(result: Array, blocks: Sequence[Any]) -> Array:
    """Return a copy of a result that is a view of a slice, so that the whole block can be freed."""
    if isinstance(result, np.generic):
        return result
    module = np if isinstance(result, np.ndarray) else sys.modules["cupy"]
    shared = any(module.may_share_memory(result, block) for block in blocks)
    return result.copy() if shared else result


def _suit(blocks: Sequence[Any], dtypes: Sequence[np.dtype[Any]]) -> bool:
    """Whether a kernel can read all blocks: arrays of NumPy, some scalars, or arrays of CuPy.

    Without axes NumPy computes with scalars, of which some powers differ from those of arrays.
    """
    kinds = {type(block) for block in blocks}
    if np.ndarray in kinds:
        known = len(kinds) == 1 or all(k is np.ndarray or issubclass(k, np.generic) for k in kinds)
        known = known and any(block.ndim for block in blocks)
    else:
        cupy = sys.modules.get("cupy")
        known = cupy is not None and kinds == {cupy.ndarray}
    if not known:
        return False
    for block, dtype in zip(blocks, dtypes, strict=True):
        if block.dtype != dtype or not block.size:
            return False
    return True


def _partial(chunked: Chunked, results: Sequence[Array], shape: Shape, place: Any = None) -> Any:
    """Return what a chunk function of Dask's returns for a block of this shape."""
    total, *others = results
    if chunked.function in EXTREMES:
        return _extremes(total, _counted(others[0], shape, place))
    if not (fields := chunked.fields):
        return total
    count = math.prod(shape[axis] for axis in chunked.axes)
    if chunked.function.startswith("nan"):
        number, *squares = others
    else:
        dtype = dtype_named(fields["n"][0])
        number, *squares = called(_counted_all, *results, count=count, dtype=dtype)
    if not squares:
        return {"n": number, "total": total}
    return {"n": number, "total": total, "M": squares[0][..., None]}


def _counted_all(
    total: Array, *variances: Array, count: int, dtype: np.dtype[Any]
) -> Sequence[Array]:
    """Return the number of elements of each sum, and squares; CuPy compiles each function alone."""
    number = np.where(np.isnan(total), count, count).astype(dtype)
    return number, *[variance * count for variance in variances]


def _extremes(values: Array, places: Array) -> Any:
    """Return extreme values and their places: one array, if it may have fields, or two."""
    if not isinstance(values, np.ndarray):
        return {"vals": values, "arg": places}
    pairs = np.empty(values.shape, [("vals", values.dtype), ("arg", places.dtype)])
    pairs["vals"], pairs["arg"] = values, places
    return pairs


def _counted(places: Array, shape: Shape, place: Any) -> Array:
    """Return places within a block as places within the array.

    ``place`` is where the block starts, along one axis, or along all and the array's shape.
    """
    if not isinstance(place, tuple):
        return places + place
    count, step = 0, 1
    for length, start, whole in zip(*map(reversed, (shape, *place)), strict=True):
        count = count + (places % length + start) * step
        places, step = places // length, step * whole
    return count
