"""Random trees of array operations."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf, nan
from typing import Any, Literal

import dask.array as da
import numpy as np
import scipy.fft

import dask_dgpu as dgpu
from tests.fuzz import functions
from tests.fuzz.draw import Draw
from tests.fuzz.kinds import KINDS
from tests.fuzz.values import Step, Unfit, Value, dask_only, eps

Text = Literal["numpy", "plain", "ours"]

NAMESPACE: Mapping[str, Any] = {
    "da": da,
    "dgpu": dgpu,
    "inf": inf,
    "nan": nan,
    "np": np,
    "partial": partial,
    "scipy": scipy,
    **{name: value for name, value in vars(functions).items() if callable(value)},
}

MOST_ELEMENTS = 20_000
LARGEST = 1e12
LARGEST_ERROR = 1e-2
"""Of a value, relative to its largest element: what is less certain tells nothing."""
ATTEMPTS = 60


@dataclass(frozen=True)
class Tree:
    """Statements, each of which makes one value of those before it.

    Parameters
    ----------
    seed : int
        What it was drawn with.
    steps : mapping of str to Step
        The statements, in order.
    errors : mapping of str to float
        How far two ways to compute each value may differ.
    outputs : tuple of str
        The values that are computed, together.
    settings : mapping of str to value
        Of :func:`dask_dgpu.enable`.
    scheduler : str
        ``"sync"`` or ``"threads"``.
    """

    seed: int
    steps: Mapping[str, Step]
    errors: Mapping[str, float]
    outputs: tuple[str, ...]
    settings: Mapping[str, Any]
    scheduler: str

    def of(self, *outputs: str) -> Tree:
        """Return the part of the tree that some values need."""
        needed = set(outputs)
        for name, step in reversed(self.steps.items()):
            if name in needed:
                needed.update(step.operands)
        steps = {name: step for name, step in self.steps.items() if name in needed}
        return replace(self, steps=steps, outputs=outputs)

    def build(
        self, text: Text, place: Callable[[Any], Any] = lambda x: x, arrays: Any = da
    ) -> list[Any]:
        """Return the outputs, computed by NumPy or lazy; ``place`` gets each input.

        ``arrays`` is the package of lazy arrays.
        """
        known = {**NAMESPACE, "da": arrays}
        for name, step in self.steps.items():
            value = eval(getattr(step, text), known)
            known[name] = value if step.operands else place(value)
        return [known[name] for name in self.outputs]


def grow(seed: int) -> Tree:
    """Draw a tree."""
    values: list[Value] = []
    d = Draw(np.random.default_rng(seed), values)
    steps: dict[str, Step] = {}
    known = dict(NAMESPACE)
    for _ in range(d.integer(2, 4)):
        source, chunks = d.input()
        plain = f"da.from_array({source}, chunks={chunks}, name=False)"
        _append(dask_only(source, plain), steps, values, known)
    names = list(KINDS)
    weights = np.array([weight for _, weight in KINDS.values()])
    length, attempts = d.integer(3, 12), 0
    while length and attempts < ATTEMPTS:
        attempts += 1
        kind = KINDS[names[int(d.rng.choice(len(names), p=weights / weights.sum()))]][0]
        try:
            _append(kind(d), steps, values, known)
            length -= 1
        except Unfit:
            continue
    others = [value.name for value in values[:-1] if d.chance(0.1)]
    outputs = (values[-1].name, *others[-2:])
    errors = {value.name: value.error for value in values}
    return Tree(seed, steps, errors, outputs, _settings(d), d.choice(("sync", "threads"))).of(
        *outputs
    )


def _settings(d: Draw) -> dict[str, Any]:
    settings: dict[str, Any] = {"local_ranks": d.choice((1, 2, 2, 3, 3, 4, 5, 7))}
    if d.chance(0.15):
        settings["regions"] = False
    if d.chance(0.2):
        settings["sum_method"] = d.choice(("compensated", "reproducible"))
    if d.chance(0.2):
        settings["fft_output_layout"] = "input"
    if d.chance(0.1):
        settings["memory_limit"] = d.choice(("4 kiB", "16 kiB", "64 kiB"))
    return settings


def _append(step: Step, steps: dict[str, Step], values: list[Value], known: dict[str, Any]) -> None:
    """Add a statement, if NumPy and plain Dask accept it and its result is fit to go on with."""
    name = f"v{len(values)}"
    operands = [value for value in values if value.name in step.operands]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        arrays = {value.name: value.array for value in values}
        lazies = {value.name: value.lazy for value in values}
        try:
            array = np.asarray(eval(step.numpy, known | arrays))
            lazy = eval(step.plain, known | lazies)
        except Exception as error:
            raise Unfit(f"it is refused: {error}") from error
    if not isinstance(lazy, da.Array):
        raise Unfit("Dask computes it at once")
    value = Value(name, array, lazy, step.error(operands, array))
    limit = 1e4 if array.dtype == np.float16 else LARGEST
    certain = value.error <= max(LARGEST_ERROR, eps(array.dtype)) * (1 + value.largest)
    if array.size > MOST_ELEMENTS or value.largest > limit or not certain:
        raise Unfit("it is too large, or not certain enough")
    if array.ndim > 4 or array.dtype.kind not in "biufc":
        raise Unfit("it has too many axes, or no numbers")
    steps[name] = step
    values.append(value)
