"""The order of an ``einsum`` of many operands: steps of two operands each, and their cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from dask.utils import format_bytes
from opt_einsum import contract_path
from opt_einsum.helpers import flop_count
from opt_einsum.paths import ssa_to_linear

from dask_dgpu.arguments import check_choice, expected, integers, sequence, shown
from dask_dgpu.array.einsum.parse import Subscripts
from dask_dgpu.cost.table import Rows, Shown, quantity

Path = Sequence[tuple[int, int]]

SEARCHES = ("auto", "greedy", "optimal", "dp")
"""The searches of opt_einsum that may be named."""

NUMPYS = "einsum_path"
"""The first entry of a path of ``numpy.einsum_path``."""


@dataclass(frozen=True)
class EinsumStep:
    """The product of two operands.

    Parameters
    ----------
    operands : tuple of int
        Two numbers: operands of the call first, then the results of earlier steps.
    left, right, result : str
        The indices of both operands and of the result.
    dtype : numpy.dtype or None
        The dtype of the result, if known.
    shape : tuple of int
        The shape of the result, within one slice.
    flops : int
        Floating-point operations of all slices.
    """

    operands: tuple[int, int]
    left: str
    right: str
    result: str
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]
    flops: int

    @property
    def summed(self) -> str:
        """The indices of both operands that the result does not have."""
        return "".join(each for each in self.left if each not in self.result)

    @property
    def elements(self) -> int:
        """The number of elements of the result, within one slice."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int | None:
        """The bytes of the result, within one slice, if its dtype is known."""
        return None if self.dtype is None else self.elements * self.dtype.itemsize


@dataclass(frozen=True)
class EinsumPath(Shown):
    """The order and the cost of a contraction. Prints and displays as a table.

    Parameters
    ----------
    subscripts : str
        Those of the call, with letters for ``...`` and with an output.
    path : tuple of tuple of int
        The positions of two operands for each step, as in ``numpy.einsum``: both are removed,
        and their product is appended.
    steps : tuple of EinsumStep
        The steps.
    slices : dict of str to tuple of int, optional
        The lengths of the slices of each sliced index.
    """

    subscripts: str
    path: tuple[tuple[int, int], ...]
    steps: tuple[EinsumStep, ...]
    slices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def flops(self) -> int:
        """Floating-point operations of all steps."""
        return sum(step.flops for step in self.steps)

    @cached_property
    def largest_intermediate(self) -> int:
        """Most elements of the result of a step other than the last."""
        return max((step.elements for step in self.steps[:-1]), default=0)

    @cached_property
    def largest_nbytes(self) -> int | None:
        """Most bytes of the result of a step other than the last, if dtypes are known."""
        known = [step.nbytes for step in self.steps[:-1] if step.nbytes is not None]
        return None if len(known) < len(self.steps) - 1 else max(known, default=0)

    def _rows(self) -> Rows:
        nbytes = self.largest_nbytes
        known = "" if nbytes is None else f", {format_bytes(nbytes)}"
        lines = [
            f"{self.subscripts}: {quantity(self.flops, 'flop')}",
            f"largest intermediate: {self.largest_intermediate} elements{known}",
            *(f"{index} in {len(lengths)} slices" for index, lengths in self.slices.items()),
        ]
        return Rows(
            "\n".join(lines),
            ("step", "summed", "shape", "elements", "bytes", "flop"),
            [
                (
                    f"{step.left},{step.right}->{step.result}",
                    step.summed or "-",
                    " x ".join(map(str, step.shape)) or "()",
                    f"{step.elements}",
                    "-" if step.nbytes is None else format_bytes(step.nbytes),
                    quantity(step.flops, ""),
                )
                for step in self.steps
            ],
        )


def pairs_of(optimize: Any, subscripts: Subscripts) -> list[tuple[int, int]]:
    """Return the two operands of each step, as in :class:`EinsumStep`."""
    count = len(subscripts.inputs)
    if isinstance(optimize, EinsumPath):
        optimize = optimize.path
    if optimize is True:
        optimize = "auto"
    if isinstance(optimize, str):
        check_choice("optimize", optimize, SEARCHES)
        optimize = _search(optimize, subscripts)
    return _pairs(sequence("optimize", optimize, f"one of {', '.join(SEARCHES)}, or a path"), count)


def _search(name: str, subscripts: Subscripts) -> Any:
    if len(subscripts.inputs) == 1:
        return [(0,)]
    # operands without elements have no cost, which would make all paths equal
    shapes = [tuple(max(1, subscripts.sizes[i]) for i in term) for term in subscripts.reduced]
    text = f"{','.join(subscripts.reduced)}->{subscripts.output}"
    path, _ = contract_path(text, *shapes, shapes=True, optimize=name)
    return path


def _pairs(path: tuple[Any, ...], count: int) -> list[tuple[int, int]]:
    """Return the steps of a path, whose entries may have any number of positions."""
    live, pairs = list(range(count)), list[tuple[int, int]]()
    if path and isinstance(path[0], str) and path[0] == NUMPYS:
        path = path[1:]
    for group in path:
        positions = sorted(integers("steps of optimize", group))
        if not positions or len(set(positions)) < len(positions):
            expected("steps of optimize", "distinct positions of operands", group)
        if positions[0] < 0 or positions[-1] >= len(live):
            expected("steps of optimize", f"positions from 0 to {len(live) - 1}", group)
        left, *others = (live[at] for at in positions)
        live = [each for i, each in enumerate(live) if i not in positions]
        for right in others:
            pairs.append((min(left, right), max(left, right)))
            left = count + len(pairs) - 1
        live.append(left)
    if len(live) > 1:
        raise ValueError(
            f"expected optimize to contract all {count} operands, got {shown(path)}, "
            f"which leaves {len(live)}"
        )
    return pairs


def steps_of(
    subscripts: Subscripts,
    pairs: Sequence[tuple[int, int]],
    dtypes: Sequence[np.dtype[Any]] | None,
    slices: Mapping[str, tuple[int, ...]],
) -> tuple[EinsumStep, ...]:
    """Return the steps of a contraction."""
    longest = {index: max(lengths) for index, lengths in slices.items()}
    sizes = subscripts.sizes | longest
    terms: dict[int, str] = dict(enumerate(subscripts.reduced))
    types: dict[int, Any] = {at: dtypes and dtypes[at] for at in terms}
    reached = {at: set(term) for at, term in terms.items()}
    steps = []
    for at, (first, second) in enumerate(pairs, len(terms)):
        left, right = terms.pop(first), terms.pop(second)
        own, used = set(left + right), set(subscripts.output).union(*terms.values())
        terms[at] = result = _kept(left, right, used) if terms else subscripts.output
        if next((i in right for i in result if (i in left) != (i in right)), False):
            first, second, left, right = second, first, right, left  # rows come from the left
        types[at] = np.result_type(types[first], types[second]) if dtypes else None
        reached[at] = reached[first] | reached[second]
        # a step is computed anew for each slice of an index that was summed before
        repeated = prod(len(slices[index]) for index in reached[at] - own if index in slices)
        flops = flop_count(own, bool(own - set(result)), 2, subscripts.sizes) * repeated
        shape = tuple(sizes[index] for index in result)
        steps.append(EinsumStep((first, second), left, right, result, types[at], shape, flops))
    return tuple(steps)


def _kept(left: str, right: str, used: set[str]) -> str:
    """Return the indices of a result: those of both operands first, as in batched products."""
    both = [index for index in left if index in right]
    others = [index for index in left + right if index not in both]
    return "".join(index for index in (*both, *others) if index in used)


def linear(pairs: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the positions of the operands of each step, as NumPy counts them."""
    return tuple((min(pair), max(pair)) for pair in ssa_to_linear(pairs))
