"""The ways to compute a tree, held against each other."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import dask
import dask.array as da
import dask_array
import numpy as np
from distributed import Client

import dask_dgpu as dgpu
from dask_dgpu.errors import UndeclaredError
from tests.fuzz.compare import difference
from tests.fuzz.tree import Tree

SETTINGS = {"when": "always", "on_error": "raise"}
FALLBACK = SETTINGS | {"on_error": "fallback"}
"""For trees of which Dask declares blocks as other than they are."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a way: arrays with their declared dtypes, or an error."""

    arrays: tuple[Any, ...] = ()
    dtypes: tuple[Any, ...] = ()
    error: Exception | None = None


Way = Callable[[Tree], Outcome]


@contextmanager
def quiet() -> Iterator[None]:
    """Overflow and the like is expected; that a graph was left to Dask is not.

    A gang is left to Dask if its blocks are not as declared.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="dask_dgpu left a graph")
        yield


def numpy_way(tree: Tree) -> Outcome:
    with quiet():
        return Outcome(tuple(map(np.asarray, tree.build("numpy"))))


def plain_way(tree: Tree) -> Outcome:
    return plain_outcome(lambda: tree.build("plain"))


def plain_outcome(build: Callable[[], list[Any]]) -> Outcome:
    assert dask.config.get("array_optimize", None) is None
    return _outcome(build, lambda x: dask.compute(*x, scheduler="sync"))


def local_way(tree: Tree) -> Outcome:
    def compute(lazy: list[Any]) -> Any:
        return dask.compute(*lazy, scheduler=tree.scheduler)

    return _ours(tree, compute, tree.settings)


def expression_way(tree: Tree) -> Outcome:
    """Return the outcome of dask_array's arrays."""

    def compute(lazy: list[Any]) -> Any:
        return dask.compute(*lazy, scheduler=tree.scheduler)

    return _ours(tree, compute, tree.settings, arrays=dask_array)


def plain_expression_way(tree: Tree) -> Outcome:
    return plain_outcome(lambda: tree.build("plain", arrays=dask_array))


def cluster_way(client: Client) -> Way:
    """Return the way by a client, which is not the default one."""

    def way(tree: Tree) -> Outcome:
        settings = {k: v for k, v in tree.settings.items() if k != "local_ranks"}
        return _ours(tree, lambda x: client.compute(x, sync=True), settings, client)

    return way


def _ours(
    tree: Tree,
    compute: Callable[[list[Any]], Any],
    settings: dict[str, Any],
    client: Client | None = None,
    arrays: Any = da,
) -> Outcome:
    def build() -> list[Any]:
        return tree.build("ours", arrays=arrays)

    with dgpu.enable(client, **SETTINGS, **settings):
        outcome = _outcome(build, compute)
    if isinstance(outcome.error, UndeclaredError):
        with dgpu.enable(client, **FALLBACK, **settings):
            outcome = _outcome(build, compute)
    return outcome


def _outcome(build: Callable[[], list[Any]], compute: Callable[[list[Any]], Any]) -> Outcome:
    with quiet():
        try:
            lazy = build()
            arrays = tuple(map(np.asarray, compute(lazy)))
        except Exception as error:
            return Outcome(error=error)
    return Outcome(arrays, tuple(each.dtype for each in lazy))


def failure(tree: Tree, ours_way: Way, plain_way: Way = plain_way) -> str | None:
    """Say what is wrong with our way to compute a tree, if anything is."""
    expected, plain, ours = numpy_way(tree), plain_way(tree), ours_way(tree)
    if ours.error is not None:
        if plain.error is not None:
            return None
        return f"plain Dask computes it, this raises {type(ours.error).__name__}: {ours.error}"
    for at, name in enumerate(tree.outputs):
        error = tree.errors[name]
        wrong = difference(ours.arrays[at], expected.arrays[at], error)
        if wrong is not None and plain.error is not None:
            return f"{name}, plain Dask raises {plain.error!r}, this against NumPy: {wrong}"
        if plain.error is not None:
            continue
        wrong_too = difference(ours.arrays[at], plain.arrays[at], error)
        if wrong is not None and wrong_too is not None:
            return f"{name}, against NumPy: {wrong}; against plain Dask: {wrong_too}"
        dtype = ours.arrays[at].dtype
        if dtype not in (plain.arrays[at].dtype, ours.dtypes[at]):
            return f"{name}, dtype {dtype}, in plain Dask {plain.arrays[at].dtype}"
        if ours.dtypes[at] != plain.dtypes[at]:
            return f"{name}, declared {ours.dtypes[at]}, by plain Dask {plain.dtypes[at]}"
    return None
