"""Checks of arguments of public functions, with errors of one sentence."""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Collection, Iterable, Mapping, Set
from difflib import get_close_matches
from numbers import Number, Real
from typing import Any, NoReturn

import numpy as np
from dask.utils import parse_bytes, typename

from graph_opt.model.layout import CONTAINERS

PLAIN = (type(None), bool, int, float, complex, str, bytes, tuple, list, np.generic)
"""Messages show values of these types, and only the type of others."""

LONGEST = 80
"""Most characters of a value in a message."""


def shown(value: Any) -> str:
    """Return a value as one short line."""
    if not isinstance(value, PLAIN):
        shape = getattr(value, "shape", None)
        named = type(value).__name__
        return f"{named} of shape {shape}" if isinstance(shape, tuple) else named
    text = reprlib.repr(value) if isinstance(value, tuple | list) else repr(value)
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else text[:LONGEST] + " ..."


def expected(name: str, what: str, value: Any, kind: type[Exception] = ValueError) -> NoReturn:
    """Raise an error with the expectation and the value."""
    raise kind(f"expected {name} to be {what}, got {shown(value)}")


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return ``" (did you mean '...'?)"`` if a known name is similar, else ``""``."""
    by_lower = {each.lower(): each for each in known}
    close = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    return f" (did you mean {by_lower[close[0]]!r}?)" if close else ""


def unknown(what: str, name: str, known: Collection[str]) -> str:
    """Return the message about an unknown name, with the known ones."""
    return f"unknown {what} {name!r}{suggestion(name, known)}, expected one of {', '.join(known)}"


def check_choice(name: str, value: Any, allowed: Collection[str]) -> None:
    """Raise unless a value is one of the allowed names."""
    if not isinstance(value, str):
        expected(name, f"one of {', '.join(allowed)}", value, TypeError)
    if value not in allowed:
        raise ValueError(unknown(name, value, allowed))


def check_flag(name: str, value: Any) -> None:
    """Raise unless a value is a bool, 0 or 1."""
    if not isinstance(value, bool | np.bool_ | int) or value not in (0, 1):
        expected(name, "True or False", value, TypeError)


def integer(name: str, value: Any, least: int | None = None) -> int:
    """Return a value as an integer; raise for a bool."""
    what = "an integer" if least is None else f"an integer of at least {least}"
    if isinstance(value, bool | np.bool_):
        expected(name, what, value, TypeError)
    try:
        number = operator.index(value)
    except TypeError:
        expected(name, what, value, TypeError)
    if least is not None and number < least:
        expected(name, what, value)
    return number


def sequence(name: str, value: Any, what: str) -> tuple[Any, ...]:
    """Return an ordered iterable as a tuple; raise for a text."""
    if isinstance(value, str | bytes | Mapping | Set) or not isinstance(value, Iterable):
        expected(name, what, value, TypeError)
    return tuple(value)


def integers(name: str, value: Any) -> tuple[int, ...]:
    """Return a sequence of integers as a tuple."""
    each = sequence(name, value, "a sequence of integers")
    return tuple(integer(f"each of {name}", one) for one in each)


def real(name: str, value: Any, what: str = "a finite number") -> float:
    """Return a value as a finite real number; raise for a bool or a text."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        expected(name, what, value, TypeError)
    number = float(value)
    if not math.isfinite(number):
        expected(name, what, value)
    return number


def positive(name: str, value: Any) -> float:
    """Return a value as a positive, finite number."""
    what = "a positive and finite number"
    number = real(name, value, what)
    if number <= 0:
        expected(name, what, value)
    return number


def bytes_of(name: str, value: Any) -> int:
    """Return a positive number of bytes, or a text such as ``"2 GiB"``, as an integer."""
    what = "bytes above 0, as '4 GiB'"
    if isinstance(value, str):
        try:
            number = float(parse_bytes(value))
        except (KeyError, ValueError, OverflowError):
            expected(name, what, value)
    else:
        number = real(name, value, what)
    if not 1 <= number < math.inf:
        expected(name, what, value)
    return int(number)


def is_number(value: Any) -> bool:
    """Whether a value is a real or complex number, and no bool."""
    return not isinstance(value, bool | np.bool_) and isinstance(value, Number)


def check_client(name: str, value: Any) -> None:
    """Raise unless a value is a connected, synchronous client."""
    from distributed import Client

    what = "a distributed.Client"
    if not isinstance(value, Client):
        expected(name, what, value, TypeError)
    if value.asynchronous:
        raise TypeError(f"expected {name} to be {what}, got an asynchronous one")
    if value.status in ("closed", "closing"):
        raise ValueError(f"expected {name} to be connected, got one that is {value.status}")


def as_array(name: str, value: Any) -> Any:
    """Return a value as a Dask array."""
    import dask.array as da

    if isinstance(value, da.Array):
        return value
    if value is None or isinstance(value, str | bytes | Mapping | Set):
        expected(name, "an array", value, TypeError)
    try:
        return da.asarray(value)
    except NotImplementedError:  # Dask cannot chunk arrays of objects by size
        raise TypeError(f"expected {name} to be of numbers, got object") from None
    except (TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        message = f"expected {name} to be an array, got {shown(value)}: {reason}"
        raise type(error)(message) from None


def check_dtype(
    name: str, x: Any, *, kinds: str = "biufc", what: str = "real or complex numbers"
) -> None:
    """Raise unless the dtype of an array is of one of these kinds."""
    if np.dtype(x.dtype).kind not in kinds:
        raise TypeError(f"expected {name} to be of {what}, got {x.dtype}")


def check_chunk_sizes(name: str, x: Any, axes: Iterable[int] | None = None) -> None:
    """Raise unless all chunk sizes along some axes, by default all, are known."""
    for axis in range(x.ndim) if axes is None else axes:
        if math.isnan(x.shape[axis]):
            raise ValueError(
                f"expected {name} with known chunk sizes, got unknown ones along axis {axis}: "
                "compute_chunk_sizes() determines them"
            )


def per_axis(name: str, value: Any, ndim: int) -> tuple[Any, ...]:
    """Return one value for each axis, from these values or from one for all axes."""
    if isinstance(value, Number | str | bytes | None):
        return (value,) * ndim
    each = sequence(name, value, "one value, or one for each axis")
    if len(each) != ndim:
        raise ValueError(f"expected {name} to have one entry per axis, {ndim}, got {len(each)}")
    return each


def check_container(name: str, x: Any) -> None:
    """Raise unless the blocks of an array are NumPy or CuPy arrays."""
    container = typename(type(x._meta))
    if container not in CONTAINERS:
        raise TypeError(f"expected {name} with blocks of NumPy or CuPy, got {container}")


def as_operand(
    name: str, value: Any, x: Any, *, kinds: str = "biuf", what: str = "real numbers"
) -> Any:
    """Return a value as a Dask array; raise unless it broadcasts to the shape of an array."""
    array = as_array(name, value)
    check_dtype(name, array, kinds=kinds, what=what)
    lengths = zip(reversed(array.shape), reversed(x.shape), strict=False)
    unknown_or_equal = (
        one in (1, two) or math.isnan(one) or math.isnan(two) for one, two in lengths
    )
    if array.ndim > x.ndim or not all(unknown_or_equal):
        raise ValueError(f"expected {name} to broadcast to shape {x.shape}, got {array.shape}")
    return array
