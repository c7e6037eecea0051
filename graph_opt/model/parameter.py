"""Numbers in a graph that may differ each time, such as a step size: as tokens in pickled text.

::

    x * 0.123456789     pickled as number("float", "9d6f...3fbf9add3739635f"): its bits
                        numbered   number("float", "000...04")
                        opened     Parameter("float", "000...04"), which cannot be computed with

Tokens in pickled graphs are numbered and restored, so a graph with another number has the same
structure. Whoever looks at the value of a :class:`Parameter` fails, so nothing that depends on it
can be kept.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

MARK = "9d6f1c7ae25b40f3"
"""The first half of the tokens of numbers; the second half are the bits of a float64."""

DIGITS: dict[type, int] = {float: 6, np.float64: 6, np.float32: 4}
"""Numbers with up to so many decimal digits are constants of a program, as are 0, NaN, infinity.

Of random numbers in single precision, one in ten has six digits.
"""

TYPES = {each.__name__: each for each in DIGITS}


@dataclass(frozen=True)
class Parameter:
    """A number of a type of :data:`TYPES` whose value is not known. Equal ones are equal."""

    kind: str
    token: str

    @property
    def sample(self) -> Any:
        """Any number of the same type."""
        return TYPES[self.kind](1.5)

    def __reduce__(self) -> Any:
        return number, (self.kind, self.token)


def number(kind: str, token: str) -> Any:
    """Return the number with a token, or a :class:`Parameter` if the token says no number."""
    if not token.startswith(MARK):
        return Parameter(kind, token)
    (value,) = struct.unpack(">d", bytes.fromhex(token[len(MARK) :]))
    return TYPES[kind](value)


def varies(value: Any) -> bool:
    """Whether a value is a number that may differ in each call of the same code."""
    kind = type(value)
    if kind not in DIGITS or not math.isfinite(value):
        return False
    return bool(kind(f"{value:.{DIGITS[kind]}g}") != value)


def as_parameter(value: Any) -> Parameter:
    """Return a number as the parameter that is pickled with its value."""
    return Parameter(type(value).__name__, MARK + struct.pack(">d", value).hex())
