"""Letters for the axes of a contraction, as in ``einsum``."""

from __future__ import annotations

from dataclasses import dataclass

REPEATED = "1"
"""The letter of an operand's axis of length 1 that is repeated along an axis of the other."""


@dataclass(frozen=True)
class Subscripts:
    """A letter for each axis of the operands and the result, as in ``einsum``.

    Letters form four groups: ``batch`` in all three, ``rows`` in left and result, ``columns`` in
    right and result, and ``inner`` in both operands, over which products are summed.
    """

    left: str
    right: str
    output: str

    def __str__(self) -> str:
        return f"{self.left},{self.right}->{self.output}"

    @property
    def batch(self) -> str:
        """Letters of all three arrays, in the order of the result."""
        return "".join(each for each in self.output if each in self.left and each in self.right)

    @property
    def rows(self) -> str:
        """Letters of the left operand and the result, in the order of the operand."""
        return "".join(each for each in self.left if each in self.output and each not in self.batch)

    @property
    def columns(self) -> str:
        """Letters of the right operand and the result, in the order of the operand."""
        return self.swapped.rows

    @property
    def inner(self) -> str:
        """Letters of both operands alone, in the order of the left one."""
        both = set(self.left) & set(self.right) - set(self.output) - {REPEATED}
        return "".join(each for each in self.left if each in both)

    @property
    def swapped(self) -> Subscripts:
        """The same contraction with its operands in the other order."""
        return Subscripts(self.right, self.left, self.output)

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The groups of letters of each array, so that it is a stack of matrices."""
        batch, rows, columns, inner = self.batch, self.rows, self.columns, self.inner
        return (batch, rows, inner), (batch, inner, columns), (batch, rows, columns)

    @property
    def fault(self) -> str | None:
        """Why this is no contraction, ``None`` if it is one."""
        for letters in (self.left, self.right, self.output):
            known = letters.replace(REPEATED, "")
            if len(set(known)) < len(known):
                return "an index appears twice in one operand"
        alone = set(self.left) ^ set(self.right)
        if alone - set(self.output) - {REPEATED}:
            return "an index of one operand alone is summed"
        return None if self.inner else "no index of both operands is summed"
