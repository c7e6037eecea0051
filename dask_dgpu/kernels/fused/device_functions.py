"""NumPy's elementwise functions in CUDA C++: what each is called, and for which kinds of dtypes.

float16 is computed in float and rounded after each function. A function that is not in the table
for some dtypes has no generated code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Dtype = np.dtype[Any]

TYPES = {
    "bool": "bool",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned int",
    "uint64": "unsigned long long",
    "float16": "float",
    "float32": "float",
    "float64": "double",
    "complex64": "Complex<float>",
    "complex128": "Complex<double>",
}
"""The C++ type that computes with each dtype."""

WIDE = ("float32", "float64")
"""Dtypes of functions that NumPy composes of others, rounding float16 after each."""

ANY, REAL, NUMBER, INTEGER, FLOAT = "biufc", "biuf", "iufc", "biu", "f"

FUNCTIONS: dict[str, tuple[str, str]] = {
    "add": ("np_add", ANY),
    "subtract": ("np_subtract", NUMBER),
    "multiply": ("np_multiply", ANY),
    "divide": ("np_divide", "fc"),
    "floor_divide": ("np_floor_divide", "iuf"),
    "remainder": ("np_remainder", "iuf"),
    "fmod": ("np_fmod", "iuf"),
    "power": ("np_power", "iuf"),
    "float_power": ("np_power", FLOAT),
    "negative": ("np_negative", NUMBER),
    "positive": ("np_positive", ANY),
    "absolute": ("np_absolute", ANY),
    "fabs": ("fabs", FLOAT),
    "sign": ("np_sign", "iuf"),
    "square": ("np_square", NUMBER),
    "reciprocal": ("np_reciprocal", FLOAT),
    "conjugate": ("np_conjugate", ANY),
    "rint": ("rint", FLOAT),
    "floor": ("np_floor", REAL),
    "ceil": ("np_ceil", REAL),
    "trunc": ("np_trunc", REAL),
    "sqrt": ("np_sqrt", FLOAT),
    "cbrt": ("cbrt", FLOAT),
    "exp": ("exp", FLOAT),
    "exp2": ("exp2", FLOAT),
    "expm1": ("expm1", FLOAT),
    "log": ("log", FLOAT),
    "log2": ("log2", FLOAT),
    "log10": ("log10", FLOAT),
    "log1p": ("log1p", FLOAT),
    "sin": ("sin", FLOAT),
    "cos": ("cos", FLOAT),
    "tan": ("tan", FLOAT),
    "arcsin": ("asin", FLOAT),
    "arccos": ("acos", FLOAT),
    "arctan": ("atan", FLOAT),
    "sinh": ("sinh", FLOAT),
    "cosh": ("cosh", FLOAT),
    "tanh": ("tanh", FLOAT),
    "arcsinh": ("asinh", FLOAT),
    "arccosh": ("acosh", FLOAT),
    "arctanh": ("atanh", FLOAT),
    "arctan2": ("atan2", FLOAT),
    "hypot": ("hypot", FLOAT),
    "copysign": ("copysign", FLOAT),
    "logaddexp": ("np_logaddexp", FLOAT),
    "logaddexp2": ("np_logaddexp2", FLOAT),
    "heaviside": ("np_heaviside", FLOAT),
    "degrees": ("np_degrees", FLOAT),
    "rad2deg": ("np_degrees", FLOAT),
    "radians": ("np_radians", FLOAT),
    "deg2rad": ("np_radians", FLOAT),
    "maximum": ("np_maximum", REAL),
    "minimum": ("np_minimum", REAL),
    "fmax": ("np_fmax", REAL),
    "fmin": ("np_fmin", REAL),
    "bitwise_and": ("np_and", INTEGER),
    "bitwise_or": ("np_or", INTEGER),
    "bitwise_xor": ("np_xor", INTEGER),
    "invert": ("np_invert", INTEGER),
    "left_shift": ("np_left_shift", "iu"),
    "right_shift": ("np_right_shift", "iu"),
    "equal": ("np_equal", ANY),
    "not_equal": ("np_not_equal", ANY),
    "less": ("np_less", REAL),
    "less_equal": ("np_less_equal", REAL),
    "greater": ("np_greater", REAL),
    "greater_equal": ("np_greater_equal", REAL),
    "logical_and": ("np_logical_and", ANY),
    "logical_or": ("np_logical_or", ANY),
    "logical_xor": ("np_logical_xor", ANY),
    "logical_not": ("np_logical_not", ANY),
    "isnan": ("np_isnan", ANY),
    "isinf": ("np_isinf", ANY),
    "isfinite": ("np_isfinite", ANY),
    "signbit": ("np_signbit", FLOAT),
}
"""Ufuncs by NumPy's own name (``np.abs`` is ``absolute``), with the kinds of their arguments."""

POWERS = {2: "np_square", 3: "np_cube", 4: "np_fourth", -1: "np_reciprocal", 1: "np_positive"}
"""Powers of floats with a constant exponent; a product is within one rounding of the power."""


def value_type(dtype: Dtype) -> str:
    """Return the C++ type that computes with a dtype."""
    return TYPES[dtype.name]


def stored_type(dtype: Dtype) -> str:
    """Return the C++ type of an element in memory."""
    return "Half" if dtype.name == "float16" else TYPES[dtype.name]


def converted(value: str, source: Dtype, target: Dtype) -> str:
    """Return ``astype`` of a value."""
    if source == target:
        return value
    if target.name == "float16":
        if source.name == "float64":
            return f"half_of_double({value})"
        return f"half_rounded(cast<float>({value}))"
    if TYPES[source.name] == TYPES[target.name]:
        return value
    return f"cast<{TYPES[target.name]}>({value})"


def literal(value: Any, dtype: Dtype) -> str:
    """Return a number of a dtype as C++."""
    with np.errstate(all="ignore"):
        number: Any = np.asarray(value).astype(dtype)[()]
    if dtype.kind == "c":
        part = np.dtype(f"f{dtype.itemsize // 2}")
        parts = literal(number.real, part), literal(number.imag, part)
        return f"{value_type(dtype)}{{{', '.join(parts)}}}"
    if dtype.kind == "b":
        return "true" if number else "false"
    if dtype.kind == "f":
        if dtype.itemsize == 8:
            known = np.isfinite(number)
            return repr(float(number)) if known else f"__longlong_as_double({_bits(number)}ll)"
        number = np.float32(number)
        return f"{float(number)!r}f" if np.isfinite(number) else f"__int_as_float({_bits(number)})"
    if dtype == np.int64 and number == np.iinfo(dtype).min:
        return "(-9223372036854775807ll - 1)"
    suffix = {"i": "", "u": "u"}[dtype.kind] + ("ll" if dtype.itemsize == 8 else "")
    if dtype == np.int32 and number == np.iinfo(dtype).min:
        return "(-2147483647 - 1)"
    return f"({value_type(dtype)}) {int(number)}{suffix}"


def _bits(number: Any) -> str:
    return hex(int.from_bytes(number.tobytes()[::-1]))


def call(
    function: str,
    arguments: Sequence[str | None],
    loop: Sequence[Dtype],
    dtype: Dtype,
    options: dict[str, Any],
    exponent: Any = None,
) -> str | None:
    """Return the C++ call of a function of NumPy, or None if there is none.

    ``exponent`` is the second argument if it is a constant, and an argument is None if it is a
    constant ``None``.
    """
    ufunc = getattr(np, function, None)
    if isinstance(ufunc, np.ufunc):
        found = _ufunc(ufunc.__name__, arguments, loop, exponent)
    else:
        found = _function(function, arguments, loop, dtype, options)
    return f"half_rounded({found})" if found and dtype.name == "float16" else found


def _ufunc(
    name: str, arguments: Sequence[str | None], loop: Sequence[Dtype], exponent: Any
) -> str | None:
    function, kinds = FUNCTIONS.get(name, ("", ""))
    if any(dtype.kind not in kinds for dtype in loop):
        return None
    constant = name == "power" and isinstance(exponent, int | float)
    if constant and loop[0].kind == "f" and exponent in POWERS:
        return f"{POWERS[int(exponent)]}({arguments[0]})"
    return f"{function}({', '.join(map(str, arguments))})"


def _function(
    name: str,
    arguments: Sequence[str | None],
    loop: Sequence[Dtype],
    dtype: Dtype,
    options: dict[str, Any],
) -> str | None:
    x, kind = arguments[0], loop[0].kind
    match name:
        case "where" if len(arguments) == 3 and not options:
            return f"({x} ? {arguments[1]} : {arguments[2]})"
        case "clip" if kind in "biuf" and not options:
            low, high = (*arguments[1:], None, None)[:2]
            least = x if low is None else f"np_maximum({x}, {low})"
            return least if high is None else f"np_minimum({least}, {high})"
        case "real" if not options:
            return f"{x}.re" if kind == "c" else x
        case "imag" if not options:
            return f"{x}.im" if kind == "c" else literal(0, dtype)
        case "angle" if kind in "fc" and not options:
            if kind == "c":
                return f"atan2({x}.im, {x}.re)"
            return f"atan2({literal(0, dtype)}, {x})"
        case "nan_to_num" if kind in "biuf" and not options:
            if kind != "f":
                return x
            limits = np.finfo(dtype)
            most, least = literal(limits.max, dtype), literal(limits.min, dtype)
            return f"np_nan_to_num({x}, {most}, {least})"
        case "sinc" if dtype.name in WIDE:
            return f"np_sinc({x}, {literal(np.finfo(dtype).eps, dtype)})"
        case "isclose" if loop[0] == loop[1] and loop[0].name in WIDE:
            return _close(str(x), str(arguments[1]), loop[0], options)
        case "round" if len(arguments) == 1 and set(options) <= {"decimals"}:
            return _rounded(x, loop[0], options.get("decimals", 0))
    return None


def _close(x: str, y: str, dtype: Dtype, options: dict[str, Any]) -> str:
    """Return ``isclose`` with NumPy's tolerances."""
    relative, absolute = options.get("rtol", 1e-5), options.get("atol", 1e-8)
    found = f"np_isclose({x}, {y}, {literal(relative, dtype)}, {literal(absolute, dtype)})"
    missing = f"(np_isnan({x}) && np_isnan({y}))"
    return f"({found} || {missing})" if options.get("equal_nan") else found


def _rounded(x: str | None, dtype: Dtype, decimals: int) -> str | None:
    """Return ``round`` as NumPy computes it: scaled, rounded to an integer, and scaled back."""
    if dtype.kind in "iu" and decimals >= 0:
        return x
    if dtype.kind != "f":
        return None
    if decimals == 0:
        return f"rint({x})"
    factor = literal(10.0 ** abs(decimals), dtype)
    half = "half_rounded" if dtype.name == "float16" else ""
    up, down = ("*", "/") if decimals > 0 else ("/", "*")
    return f"(rint({half}({x} {up} {factor})) {down} {factor})"
