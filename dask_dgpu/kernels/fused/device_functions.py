"""NumPy's elementwise functions in CUDA C++: what each is called, and for which kinds of dtypes.

float16 is computed in float and rounded after each function. A function that is not in the table
for some dtypes has no generated code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graph_opt.model.expression import Apply, Constant, Node

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

OWN = {
    "biufc": "add multiply positive absolute conjugate equal not_equal isnan isinf isfinite "
    "logical_and logical_or logical_xor logical_not",
    "iufc": "subtract negative square",
    "biuf": "floor ceil trunc maximum minimum fmax fmin less less_equal greater greater_equal",
    "iuf": "floor_divide remainder fmod power sign",
    "fc": "divide",
    "biu": "invert",
    "iu": "left_shift right_shift",
    "f": "reciprocal sqrt logaddexp logaddexp2 heaviside degrees radians signbit",
}
"""Functions of the prelude, ``np_`` and NumPy's name, by the kinds of their arguments."""

CUDAS = (
    "fabs rint cbrt exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh hypot copysign"
)
"""Functions of floats that CUDA has under the same name."""

INVERSE = "sin cos tan sinh cosh tanh tan2"
"""Functions of floats with ``arc`` before their names, in CUDA with ``a``."""

FUNCTIONS: dict[str, tuple[str, str]] = {
    **{name: (f"np_{name}", kinds) for kinds, names in OWN.items() for name in names.split()},
    **{name: (name, "f") for name in CUDAS.split()},
    **{f"arc{name}": (f"a{name}", "f") for name in INVERSE.split()},
    **{f"bitwise_{name}": (f"np_{name}", "biu") for name in ("and", "or", "xor")},
    "float_power": ("np_power", "f"),
    "rad2deg": ("np_degrees", "f"),
    "deg2rad": ("np_radians", "f"),
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
    wide = dtype.itemsize == 8
    if dtype.kind == "c":
        part = np.dtype(f"f{dtype.itemsize // 2}")
        parts = literal(number.real, part), literal(number.imag, part)
        return f"{value_type(dtype)}{{{', '.join(parts)}}}"
    if dtype.kind == "b":
        return "true" if number else "false"
    if dtype.kind == "f":
        number = number if wide else np.float32(number)
        if np.isfinite(number):
            return f"{float(number)!r}{'' if wide else 'f'}"
        bits = hex(int.from_bytes(number.tobytes()[::-1]))
        return f"__longlong_as_double({bits}ll)" if wide else f"__int_as_float({bits})"
    if number == np.iinfo(np.int64).min:
        return "(-9223372036854775807ll - 1)"
    return f"({value_type(dtype)}) {number}{'u' * (dtype.kind == 'u')}{'ll' * wide}"


def call(
    node: Apply,
    nodes: Sequence[Node],
    arguments: Sequence[str | None],
    loop: Sequence[Dtype],
    dtype: Dtype,
) -> str | None:
    """Return the C++ call of a function of NumPy, or None if there is none.

    An argument is None if it is a constant ``None``.
    """
    options = {name: value for name, value in node.options if name != "dtype"}
    if isinstance(getattr(np, node.function), np.ufunc):
        last = nodes[node.arguments[-1]]
        exponent = last.value if isinstance(last, Constant) else None
        code = None if options else _ufunc(node.function, arguments, loop, exponent)
    else:
        code = _function(node.function, arguments, loop, dtype, options)
    return f"half_rounded({code})" if code and dtype.name == "float16" else code


def _ufunc(
    name: str, arguments: Sequence[str | None], loop: Sequence[Dtype], exponent: Any
) -> str | None:
    function, kinds = FUNCTIONS.get(getattr(np, name).__name__, ("", ""))
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
        case "isclose" if loop[0] == loop[1] and loop[0].name in WIDE:
            return _close(str(x), str(arguments[1]), loop[0], options)
        case "round" if options.keys() <= {"decimals"}:
            return _rounded(x, loop[0], options.get("decimals", 0))
        case _ if options:
            return None
        case "where":
            return f"({x} ? {arguments[1]} : {arguments[2]})"
        case "clip" if kind in "biuf":
            _, low, high = arguments
            least = x if low is None else f"np_maximum({x}, {low})"
            return least if high is None else f"np_minimum({least}, {high})"
        case "real":
            return f"{x}.re" if kind == "c" else x
        case "imag":
            return f"{x}.im" if kind == "c" else literal(0, dtype)
        case "angle" if kind == "c":
            return f"atan2({x}.im, {x}.re)"
        case "angle" if kind == "f":
            return f"atan2({literal(0, dtype)}, {x})"
        case "nan_to_num" if kind == "f":
            limits = np.finfo(dtype)
            most, least = literal(limits.max, dtype), literal(limits.min, dtype)
            return f"np_nan_to_num({x}, {most}, {least})"
        case "nan_to_num" if kind in "biu":
            return x
        case "sinc" if dtype.name in WIDE:
            return f"np_sinc({x}, {literal(np.finfo(dtype).eps, dtype)})"
    return None


def _close(x: str, y: str, dtype: Dtype, options: dict[str, Any]) -> str:
    """Return ``isclose`` with NumPy's tolerances."""
    relative, absolute = options.get("rtol", 1e-5), options.get("atol", 1e-8)
    code = f"np_isclose({x}, {y}, {literal(relative, dtype)}, {literal(absolute, dtype)})"
    missing = f"(np_isnan({x}) && np_isnan({y}))"
    return f"({code} || {missing})" if options.get("equal_nan") else code


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
