"""Names of the tasks of gangs, and tokens: what differs in names and numbers of equal graphs.

Dask ends the names of arrays with a token, which differs for the same code on other data::

    add-53fa9c...        add-000...00                 add-000...00
      |                    |            optimize        |               restore
    sum-91b2d0...  --->  sum-000...01  --------->  dgpu-gang-000...01-7c...  -->  real names

Texts keep their lengths, so pickled data with other tokens is still a pickle. Numbers that may
differ each time, such as a step size, are tokens too::

    x * 0.123456789     pickled as number("float", "9d6f...3fbf9add3739635f"): its bits
                        numbered   number("float", "000...04")
                        opened     Parameter("float", "000...04"), which cannot be computed with
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

STAGE = "dgpu-stage"
GANG = "dgpu-gang"
TURN = "dgpu-turn"

LEVEL = re.compile(r"[.][0-9]+(?=-)")
"""What names the steps before the last in the work for one layer: ``cumsum.0-53fa9c...``."""

LENGTH = 32
"""A token has so many hexadecimal digits, and no further one beside it."""

MARK = "9d6f1c7ae25b40f3"
"""The first half of the tokens of numbers; the second half are the bits of a float64."""

DIGITS: dict[type, int] = {float: 6, np.float64: 6, np.float32: 4}
"""Numbers with up to so many decimal digits are constants of a program, as are 0, NaN, infinity.

Of random numbers in single precision, one in ten has six digits.
"""

TYPES = {each.__name__: each for each in DIGITS}

_IS_DIGIT = bytes(byte in b"0123456789abcdef" for byte in range(256))


def label(name: str) -> str:
    """Return a layer's name with a short token."""
    operation, dash, token = name.rpartition("-")
    return f"{operation}{dash}{token[:8]}" if dash else name


def is_gang(key: Any) -> bool:
    """Whether a key belongs to a ``gang`` task."""
    return type(key) is tuple and type(key[0]) is str and key[0].startswith(GANG)


def is_stage(key: Any) -> bool:
    """Whether a key belongs to a ``stage`` task."""
    return type(key) is tuple and type(key[0]) is str and key[0].startswith(STAGE)


def serves(key: Any) -> bool:
    """Whether a key belongs to a ``stage`` or ``turn`` task, which only serve a gang."""
    return is_stage(key) or (type(key) is tuple and str(key[0]).startswith(TURN))


def numbered(text: bytes) -> tuple[bytes, bytes]:
    """Return pickled data with a number in place of each token, and the tokens, in one text.

    Each has a space before it, so that they are tokens in that text too, and in its pickle.
    """
    pieces, tokens = parted(text)
    numbers = {token: b"%032x" % i for i, token in enumerate(dict.fromkeys(tokens))}
    return joined(pieces, map(numbers.__getitem__, tokens)), b"".join(
        b" " + number for number in numbers
    )


def restored(text: bytes, tokens: bytes) -> bytes:
    """Return data about what :func:`numbered` has returned, with these tokens.

    A further token, as in the name of a gang, becomes another for other tokens.
    """
    pieces, given = parted(text)
    real = {b"%032x" % i: token for i, token in enumerate(tokens.split())}
    for token in given:
        if token not in real:
            real[token] = blake2b(token + tokens, digest_size=16).hexdigest().encode()
    return joined(pieces, map(real.__getitem__, given))


def parted(text: bytes) -> tuple[list[bytes], list[bytes]]:
    """Return the text around all tokens, and the tokens.

    A regular expression takes eight times as long to find them.
    """
    is_digit = np.frombuffer(b"\0" + text.translate(_IS_DIGIT) + b"\0", np.int8)
    edges = np.flatnonzero(is_digit[1:] != is_digit[:-1])
    starts, ends = edges[::2], edges[1::2]
    pieces, tokens, end = [], [], 0
    for start in starts[ends - starts == LENGTH].tolist():
        pieces.append(text[end:start])
        end = start + LENGTH
        tokens.append(text[start:end])
    return [*pieces, text[end:]], tokens


def joined(pieces: list[bytes], tokens: Iterable[bytes]) -> bytes:
    """Return the text with these parts around these tokens."""
    text = [b""] * (2 * len(pieces) - 1)
    text[::2], text[1::2] = pieces, tokens
    return b"".join(text)


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
