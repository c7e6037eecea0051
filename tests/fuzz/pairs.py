"""Pairs of programs that differ in exactly one place: in a literal of a tree, or in a constant.

What is kept of one program must not get into the result of the other.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import dask.array as da
import numpy as np

from tests.fuzz.compare import difference
from tests.fuzz.tree import Tree, grow
from tests.fuzz.values import Step, eps, largest
from tests.fuzz.ways import plain_outcome, quiet
from tests.support.constants import PROGRAMS, Program
from tests.support.places import PLACES

Place: TypeAlias = Callable[[Any], Any]
"""Puts an input somewhere, such as in the memory of workers."""

ATTEMPTS, LITERALS = 100, 8
MOST_TASKS = 300
LARGEST = 1e9
ROUNDINGS = 2.0**10
"""Of the largest value: a tree with another literal may round more than the tree was drawn for."""

WORDS: tuple[tuple[str, ...], ...] = (
    ("f4", "f8", "c8", "c16", "i4", "i8"),
    ("backward", "ortho", "forward"),
    ("periodic", "reflect", "nearest"),
    ("edge", "wrap", "symmetric", "linear_ramp"),
)
TABLE: dict[str, Program] = PROGRAMS | PLACES


@dataclass(frozen=True)
class Pair:
    """Two programs, and the place where they differ.

    Parameters
    ----------
    seed : int
        What it was drawn with.
    text : str
        The programs, for whoever reads of a failure.
    build : callable of (int, Place)
        Returns the arrays that program 0 or 1 computes.
    expected : tuple of tuple of ndarray
        What plain Dask computes for each.
    error : float
        How far arrays may be from it, relative to their largest value.
    """

    seed: int
    text: str
    build: Callable[[int, Place], list[Any]]
    expected: tuple[Any, Any]
    error: float

    @property
    def differs(self) -> bool:
        """Whether it matters which of both programs is computed."""
        one, other = self.expected
        kinds = [[(each.shape, each.dtype) for each in arrays] for arrays in (one, other)]
        return kinds[0] != kinds[1] or any(
            a.tobytes() != b.tobytes() for a, b in zip(one, other, strict=True)
        )

    def wrong(self, k: int, arrays: Any) -> str | None:
        """Say how the results of a program differ from plain Dask's, if they do."""
        for at, (found, expected) in enumerate(zip(arrays, self.expected[k], strict=True)):
            if found.dtype != expected.dtype:
                return f"result {at} has dtype {found.dtype}, not {expected.dtype}"
            error = difference(found, expected, self.error * (1 + largest(expected)))
            if error is not None:
                return f"result {at}: {error}"
        return None


def draw(seed: int) -> Pair:
    """Draw a pair: one of trees, or one of programs in a chain."""
    rng = np.random.default_rng(seed)
    kind = of_trees if rng.random() < 0.5 else of_chain
    for _ in range(ATTEMPTS):
        for pair in kind(seed, rng):
            if pair.differs:
                return pair
    raise RuntimeError(f"no pair for seed {seed}")


def of_trees(seed: int, rng: np.random.Generator) -> Iterator[Pair]:
    """Draw a tree, and change one literal of it each time, if plain Dask computes both."""
    tree = grow(int(rng.integers(2**31)))
    one = values(tree)
    if one is None:
        return
    for _ in range(LITERALS):
        name = str(rng.choice(list(tree.steps)))
        step = tree.steps[name]
        text = other_literal(step.plain, rng) if step.ours == step.plain else None
        if text is None:
            continue
        steps = {**tree.steps, name: Step(step.numpy, text, text)}
        trees = (tree, replace(tree, steps=steps))
        other = values(trees[1])
        alone = partial(trees[1].build, "plain")  # fails where another fusion computes it
        if other is None or plain_outcome(alone).error is not None:
            continue
        expected = tuple(tuple(each[at] for at in tree.outputs) for each in (one, other))
        dtypes = [each.dtype for each in (*one.values(), *other.values())]
        error = max(ROUNDINGS * eps(*dtypes), *tree.errors.values())

        def build(k: int, place: Place, trees: tuple[Tree, Tree] = trees) -> list[Any]:
            return trees[k].build("plain", place)  # in the same chunks

        shown = [f"{at} = {each.plain}" for at, each in tree.steps.items()]
        said = "\n".join([*shown, f"or {name} = {text}", f"computed: {tree.outputs}"])
        yield Pair(seed, said, build, (expected[0], expected[1]), error)


def values(tree: Tree) -> dict[str, Any] | None:
    """Return all values of a tree, if plain Dask computes them in shapes and dtypes as it says.

    They are finite: of others it is not clear how they may differ.
    """
    whole = replace(tree, outputs=tuple(tree.steps))
    with quiet():
        try:
            lazy = whole.build("plain")
            if sum(map(len, lazy[-1].dask.layers.values())) > MOST_TASKS:
                return None
        except Exception:  # the literal is not allowed there
            return None
    outcome = plain_outcome(lambda: lazy)
    if outcome.error is not None:
        return None
    for array, each in zip(outcome.arrays, lazy, strict=True):
        if array.dtype != each.dtype or not all(map(fits, array.shape, each.shape)):
            return None
        if not np.isfinite(array).all() or largest(array) > LARGEST:
            return None
    return dict(zip(whole.outputs, outcome.arrays, strict=True))


def fits(n: int, size: float) -> bool:
    return n == size or bool(np.isnan(size))


def other_literal(text: str, rng: np.random.Generator) -> str | None:
    """Return an expression with one literal changed in value, sign of zero, or type."""
    nodes = [node for node in ast.walk(ast.parse(text, mode="eval")) if changes(node)]
    if not nodes:
        return None
    node = nodes[int(rng.integers(len(nodes)))]
    assert isinstance(node, ast.Constant)
    choices = changes(node)
    new = choices[int(rng.integers(len(choices)))]
    return text[: node.col_offset] + repr(new) + text[node.end_col_offset :]


def changes(node: ast.AST) -> list[Any]:
    """Return what may stand in place of a literal."""
    if not isinstance(node, ast.Constant):
        return []
    value = node.value
    if isinstance(value, bool):
        return [not value, int(value)]
    if isinstance(value, int | float):
        others = [value + 1, -value, value + 0.5, float(value)]
        return [-0.0, *others] if value == 0 else [value - 1, *others]
    if isinstance(value, str):
        bare = value.lstrip("<>|=")
        return [each for words in WORDS if bare in words for each in words if each != bare]
    return []


def of_chain(seed: int, rng: np.random.Generator) -> Iterator[Pair]:
    """Draw programs of the table, one after the other, of which one has another constant."""
    names = [str(each) for each in rng.choice(list(TABLE), int(rng.integers(1, 5)))]
    at = int(rng.integers(len(names)))
    others = [int(each) for each in rng.integers(2, size=len(names))]
    gangs = [bool(each) for each in rng.random(len(names)) < 0.5]
    values = rng.random((8, 8))
    chunks = int(rng.choice([3, 4, 8]))

    def build(k: int, place: Place) -> list[Any]:
        x = place(da.from_array(values + 0, chunks))
        results = []
        for number, name in enumerate(names):
            y = TABLE[name](x, k if number == at else others[number])
            results = [y] if number == at else results
            x = folded(x, y)
            x = (x @ x.T) / 8 if gangs[number] else x
        return [*results, x]

    expected = [plain_outcome(partial(build, k, lambda x: x)) for k in (0, 1)]
    if any(each.error is not None for each in expected):
        return
    links = [f"{name}, constant {k}" for name, k in zip(names, others, strict=True)]
    links[at] = f"{names[at]}, constant 0 or 1"
    said = f"{links}, {gangs=}, {chunks=}"
    yield Pair(seed, said, build, (expected[0].arrays, expected[1].arrays), 1e-9)


def folded(x: da.Array, y: da.Array) -> da.Array:
    """Return an array of shape (8, 8) that depends on each element of a result."""
    y = da.where(da.isfinite(y) & (abs(y) < 1e9), abs(y), 7.0)
    if any(np.isnan(n) for sizes in y.chunks for n in sizes):
        return x + da.cos(y).mean()
    if y.shape == (8, 8):
        return x * 0.5 + da.cos(y)
    weights = da.from_array(np.cos(np.arange(y.size, dtype=float)).reshape(y.shape), y.chunks)
    return x * 0.5 + (da.cos(y) * weights).mean()
