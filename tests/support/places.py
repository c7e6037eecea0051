"""Programs in pairs that differ in one constant that only a function of the user reaches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from types import FunctionType, SimpleNamespace
from typing import Any

import dask.array as da
import numpy as np

from tests.support.constants import ROW, Program, rng


class Model:
    """An object with a method that is a function of blocks."""

    def __init__(self, k: int) -> None:
        self.table = ROW + k

    def scaled(self, block: Any) -> Any:
        return block * self.table[1]


class Slotted:
    """An object without a dictionary."""

    __slots__ = ("factor",)

    def __init__(self, k: int) -> None:
        self.factor = k + 2.0

    def __call__(self, block: Any) -> Any:
        return block * self.factor


def with_global(k: int) -> Callable[[Any], Any]:
    """Return a function that reads a global, as in a notebook."""

    def scaled(block: Any) -> Any:
        return block * FACTOR  # type: ignore[name-defined]  # noqa: F821

    names = {"FACTOR": k + 2.0, "__builtins__": __builtins__, "__name__": "__main__"}
    return FunctionType(scaled.__code__, names)


def with_global_function(k: int) -> Callable[[Any], Any]:
    """Return a function that calls another one of a notebook."""

    def shifted(block: Any) -> Any:
        return SHIFT(block)  # type: ignore[name-defined]  # noqa: F821

    names = {"SHIFT": lambda block: block + k, "__builtins__": __builtins__, "__name__": "__main__"}
    return FunctionType(shifted.__code__, names)


def nested(k: int) -> Callable[[Any], Any]:
    """Return a function whose closure has a function with a closure."""
    table = {"shift": [ROW, k + 1.0]}

    def shift() -> Any:
        return table["shift"][1]

    return lambda block: block + shift()


def with_attribute(k: int) -> Callable[[Any], Any]:
    """Return a function that reads an attribute of its own."""

    def scaled(block: Any) -> Any:
        return block * scaled.factor  # type: ignore[attr-defined]

    scaled.factor = k + 2.0  # type: ignore[attr-defined]
    return scaled


def with_keyword(k: int) -> Callable[..., Any]:
    """Return a function with a keyword-only default."""

    def scaled(block: Any, *, factor: float = k + 2.0) -> Any:
        return block * factor

    return scaled


def other_code(k: int) -> Callable[[Any], Any]:
    """Return one of two functions with the same names and constants."""

    def made() -> Callable[[Any], Any]:
        if k:

            def scaled(block: Any) -> Any:
                return block * 2.0

        else:

            def scaled(block: Any) -> Any:
                return block + 2.0

        return scaled

    return made()


def weighted(block: Any, weights: Any) -> Any:
    return block * weights[1]


def composed(k: int) -> Callable[[Any], Any]:
    return partial(reduce, lambda x, y: x + y, [k + 0.5, 2.0])  # type: ignore[arg-type]


def of_location(k: int) -> Callable[..., Any]:
    """Return a function of a block's place."""

    def placed(block: Any, block_info: Any = None) -> Any:
        start = block_info[0]["array-location"][k][0] if block_info else 0
        return block + start

    return placed


def mapped(make: Callable[[int], Any]) -> Program:
    return lambda x, k: x.map_blocks(make(k), dtype=float)


FUNCTIONS: dict[str, Program] = {
    "bound method": mapped(lambda k: Model(k).scaled),
    "slots": mapped(Slotted),
    "global": mapped(with_global),
    "function of a global": mapped(with_global_function),
    "nested closure": mapped(nested),
    "attribute of a function": mapped(with_attribute),
    "keyword default": mapped(with_keyword),
    "other code": mapped(other_code),
    "block_info": mapped(of_location),
    "meta without a call": lambda x, k: x.map_blocks(nested(k), meta=np.empty((0, 0))),
}

ARGUMENTS: dict[str, Program] = {
    "list": lambda x, k: x.map_blocks(weighted, [1.0, 2.0 + k], dtype=float),
    "tuple": lambda x, k: x.map_blocks(weighted, (1.0, 2.0 + k), dtype=float),
    "dictionary": lambda x, k: x.map_blocks(weighted, {1: 2.0 + k}, dtype=float),
    "list, keyword": lambda x, k: x.map_blocks(weighted, weights=[1.0, 2.0 + k], dtype=float),
    "array of one dtype or another": lambda x, k: x.map_blocks(
        lambda block, table: block + table.itemsize, ROW.astype(("f4", "f8")[k]), dtype=float
    ),
    "object": lambda x, k: x.map_blocks(
        lambda block, place: block + place.shift, SimpleNamespace(shift=k + 1.0), dtype=float
    ),
    "slice": lambda x, k: x.map_blocks(
        lambda block, part: block + block[part].sum(), slice(k, k + 1), dtype=float
    ),
    "None or a number": lambda x, k: x.map_blocks(
        lambda block, shift: block + (3 if shift is None else shift), (None, 0)[k], dtype=float
    ),
    "text": lambda x, k: x.map_blocks(np.round, 1 + k, dtype=float),
    "integer or boolean": lambda x, k: x.map_blocks(
        lambda block, one: block + isinstance(one, bool), (1, True)[k], dtype=float
    ),
    "zero of either sign": lambda x, k: x.map_blocks(np.copysign, (0.0, -0.0)[k], dtype=float),
    "zero in a list": lambda x, k: x.map_blocks(
        lambda block, zeros: np.copysign(block, zeros[0]), [(0.0, -0.0)[k]], dtype=float
    ),
    "blockwise, keyword": lambda x, k: da.blockwise(
        weighted, "ij", x, "ij", weights=[1.0, 2.0 + k], dtype=float
    ),
    "blockwise, new axis": lambda x, k: da.blockwise(
        lambda block, n: np.repeat(block[..., None], 2, -1) * n,
        "ijk",
        x,
        "ij",
        n=1.0 + k,
        new_axes={"k": 2},
        dtype=float,
    ),
    "two arrays": lambda x, k: da.map_blocks(
        lambda one, two: one - 2 * two, *((x, x + 1) if k else (x + 1, x)), dtype=float
    ),
}

OPTIONS: dict[str, Program] = {
    "split_every": lambda x, k: (x * 1e3).sum(axis=0, split_every=2 + k),
    "chunks": lambda x, k: x.rechunk(2 + k).map_blocks(
        lambda block: block + block.shape[0], dtype=float
    ),
    "chunks of an input": lambda x, k: (
        x + da.ones((8, 8), chunks=2 + k).map_blocks(lambda block: block.sum() + 0 * block)
    ),
    "name of a generator": lambda x, k: x + rng(5 + k).poisson(3.0, (8, 8), chunks=4),
    "assignment beside others": lambda x, k: assigned_twice(x, k),
    "dtype of a sum": lambda x, k: (1e4 * x).astype("f4").mean(axis=1, dtype=("f8", "f4")[k]),
    "order of operands": lambda x, k: da.stack([x, x + 1][:: 1 - 2 * k])[0],
}


def assigned_twice(x: da.Array, k: int) -> da.Array:
    z = x + 0.0
    z[1] = 3.0
    z[:, 2] = ROW * (k + 1)
    return z


GROUPS = {"of a function": FUNCTIONS, "argument": ARGUMENTS, "option": OPTIONS}
PLACES: dict[str, Program] = {
    f"{group}: {name}": program
    for group, programs in GROUPS.items()
    for name, program in programs.items()
}
