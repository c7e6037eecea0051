"""Subscripts of ``einsum``, checked against the shapes of its operands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opt_einsum.parser import convert_interleaved_input, parse_einsum_input

from dask_dgpu.arguments import expected

Shape = tuple[int, ...]

MARKS = ".,->"
ELLIPSIS = "..."


@dataclass(frozen=True)
class Subscripts:
    """The indices of operands and result, a character each.

    Parameters
    ----------
    inputs : tuple of str
        The indices of each operand, with letters for ``...``.
    output : str
        The indices of the result.
    sizes : dict of str to int
        The size of each index.
    reduced : tuple of str
        The indices of each operand for its products: without repeated indices, axes that are
        broadcast, and summed indices of one operand only.
    """

    inputs: tuple[str, ...]
    output: str
    sizes: dict[str, int]
    reduced: tuple[str, ...]

    def __str__(self) -> str:
        """Return them in one line, as for ``einsum``."""
        return f"{','.join(self.inputs)}->{self.output}"


def arguments(subscripts: Any, operands: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """Return subscripts as text, and the operands, for both forms of a call."""
    if isinstance(subscripts, str):
        return subscripts.replace(" ", ""), tuple(operands)
    each = (subscripts, *operands)
    lists = [*each[1::2], *(each[-1:] if len(each) % 2 else ())]
    for indices in lists:
        if not isinstance(indices, list | tuple) or not all(map(_is_index, indices)):
            expected("subscripts", "text, or operands and lists of integers", indices, TypeError)
    text, arrays = convert_interleaved_input(each)
    return text, tuple(arrays)


def _is_index(value: Any) -> bool:
    return value is Ellipsis or (isinstance(value, int) and not isinstance(value, bool))


def parse(text: str, shapes: Sequence[Shape]) -> Subscripts:
    """Return the indices of operands with these shapes; raise for any mismatch."""
    _check(text, shapes)
    inputs, output, _ = parse_einsum_input((text, *shapes), shapes=True)
    terms = tuple(inputs.split(","))
    sizes = _sizes(text, terms, shapes)
    return Subscripts(terms, output, sizes, _reduced(terms, output, sizes, shapes))


def _check(text: str, shapes: Sequence[Shape]) -> None:
    """Raise unless subscripts are well formed and have the number of operands and axes."""
    for mark in text:
        if mark not in MARKS and not mark.isalpha():
            what = "letters, ',', '...' and '->'"
            raise ValueError(f"expected subscripts of {what}, got {mark!r} in {text!r}")
    left, _, output = text.partition("->")
    if "-" in left + output or ">" in left + output or "," in output:
        expected("subscripts", "inputs, or inputs, '->' and one output", text)
    terms = left.split(",")
    for term in (*terms, output):
        if "." in term.replace(ELLIPSIS, "", 1):
            raise ValueError(f"expected '...' at most once for each operand, got {term!r}")
    if len(terms) != len(shapes):
        count = f"{len(terms)} operand{'s' * (len(terms) != 1)}"
        raise ValueError(f"expected {count} for {text!r}, got {len(shapes)}")
    for i, (term, shape) in enumerate(zip(terms, shapes, strict=True)):
        named = len(term.replace(ELLIPSIS, ""))
        if len(shape) != named and not (ELLIPSIS in term and len(shape) > named):
            least = "at least " if ELLIPSIS in term else ""
            axes = f"{least}{named} ax{'i' if named == 1 else 'e'}s"
            raise ValueError(f"expected operand {i} with {axes} for {term!r}, got {len(shape)}")
    for index, times in Counter(output.replace(ELLIPSIS, "")).items():
        if times > 1:
            raise ValueError(f"expected each index at most once in the output, got {output!r}")
        if index not in left:
            raise ValueError(f"expected output indices from {left!r}, got {index!r}")


def _sizes(text: str, terms: Sequence[str], shapes: Sequence[Shape]) -> dict[str, int]:
    """Return the size of each index; axes of size 1 are broadcast, but not within an operand."""
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        own: dict[str, int] = {}
        for index, size in zip(term, shape, strict=True):
            known, within = sizes.get(index, 1), own.setdefault(index, size)
            if size != within or (size != 1 and known not in (1, size)):
                what = f"index {index!r}" if index in text else "'...'"
                got = f"{known if size == within else within} and {size}"
                raise ValueError(f"expected equal sizes of {what} in {text!r}, got {got}")
            sizes[index] = size if known == 1 else known
    return sizes


def _reduced(
    terms: Sequence[str], output: str, sizes: dict[str, int], shapes: Sequence[Shape]
) -> tuple[str, ...]:
    """Return the indices of operands for their products."""
    full = []
    for term, shape in zip(terms, shapes, strict=True):
        length = dict(zip(term, shape, strict=True))
        full.append([index for index in distinct(term) if length[index] == sizes[index]])
    times = Counter(index for each in full for index in each)
    return tuple("".join(i for i in each if i in output or times[i] > 1) for each in full)


def distinct(term: str) -> str:
    """Return each index once; repeated ones come last, as axes of diagonals do."""
    for index, times in Counter(term).items():
        if times > 1:
            term = term.replace(index, "") + index
    return term
