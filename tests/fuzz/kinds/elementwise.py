"""Work on single elements."""

from __future__ import annotations

import numpy as np

from tests.fuzz.draw import Draw, fitting_last
from tests.fuzz.kinds.registry import kind
from tests.fuzz.values import Step, Unfit, Value, both, dask_only, eps

SAME = ("abs", "conj", "real", "imag", "negative", "isnan", "isfinite")
STEPPED = ("floor", "rint", "sign", "ceil", "logical_not", "signbit")
SMOOTH = ("tanh", "sin", "cos", "arctan")
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


def is_real(value: Value) -> bool:
    return value.kind != "c"


def is_exact(value: Value) -> bool:
    return value.exact


def is_number(value: Value) -> bool:
    return value.kind != "b"


def pair(d: Draw, *fits: object) -> tuple[Value, Value]:
    """Two values whose shapes broadcast."""
    a = d.value(*fits)  # type: ignore[arg-type]
    b = d.value(*fits, lambda each: fitting_last(a, each))  # type: ignore[arg-type]
    return (a, b) if d.chance(0.5) else (b, a)


@kind(2.0)
def unary(d: Draw) -> Step:
    name = d.choice(SAME)
    a = d.value(lambda v: is_number(v) or name != "negative")
    return both(f"xp.{name}({a.name})", a.error, a.largest if a.kind == "c" else 0.0)


@kind()
def stepped(d: Draw) -> Step:
    name = d.choice(STEPPED)
    a = d.value(is_exact, is_real, is_number)
    return both(f"xp.{name}({a.name})")


@kind(2.0)
def smooth(d: Draw) -> Step:
    name = d.choice(SMOOTH)
    a = d.value(is_real)
    return both(f"xp.{name}({a.name})", a.error, 2.0)


@kind()
def bounded(d: Draw) -> Step:
    a = d.value(is_number)
    text = d.choice(("xp.exp(-xp.abs({}))", "xp.log1p(xp.abs({}))", "xp.sqrt(1 + xp.abs({}))"))
    return both(text.format(a.name), a.error, a.largest + 2)


@kind()
def scaled(d: Draw) -> Step:
    a = d.value(is_number)
    text = d.choice(("{} * 2 + 1", "3 - {}", "{} * 0.5", "{} / 4", "2 * {} - {}"))
    return both(text.format(a.name, a.name), 3 * a.error, 4 * a.largest + 3, adds=True)


@kind()
def power(d: Draw) -> Step:
    a = d.value(is_number)
    text = d.choice(("{} ** 2", "xp.square({})"))
    return both(text.format(a.name), 2 * a.largest * a.error, a.largest**2, adds=True)


@kind(5.0)
def arithmetic(d: Draw) -> Step:
    a, b = pair(d, is_number)
    return both(
        f"{a.name} {d.choice('+-')} {b.name}", a.error + b.error, a.largest + b.largest, adds=True
    )


@kind(3.0)
def multiplied(d: Draw) -> Step:
    a, b = pair(d)
    carried = a.error * (b.largest + b.error) + b.error * a.largest
    return both(f"{a.name} * {b.name}", carried, a.largest * b.largest, adds=True)


@kind()
def divided(d: Draw) -> Step:
    a, b = pair(d, is_number)
    text = f"{a.name} / (1 + xp.abs({b.name}))"
    return both(text, a.error + a.largest * b.error, a.largest)


@kind()
def extremes(d: Draw) -> Step:
    a, b = pair(d, is_real)
    return both(f"xp.{d.choice(('maximum', 'minimum'))}({a.name}, {b.name})", a.error + b.error)


@kind(2.0)
def compared(d: Draw) -> Step:
    a, b = pair(d, is_exact)
    signs = COMPARISONS if is_real(a) and is_real(b) else COMPARISONS[-2:]
    return both(f"{a.name} {d.choice(signs)} {b.name}")


@kind()
def compared_with_a_number(d: Draw) -> Step:
    a = d.value(is_exact, is_real)
    return both(f"{a.name} {d.choice(COMPARISONS)} {d.integer(-1, 2)}")


@kind(2.0)
def where(d: Draw) -> Step:
    a, b = pair(d)
    mask = d.value(
        lambda v: v.exact and fitting_last(v, a) and fitting_last(v, b),
        lambda v: v.kind == "b" or d.chance(0.2),
    )
    return both(f"xp.where({mask.name}, {a.name}, {b.name})", a.error + b.error)


@kind()
def clip(d: Draw) -> Step:
    a = d.value(is_real, is_number)
    return both(f"xp.clip({a.name}, {d.integer(0, 1)}, {d.integer(2, 5)})", a.error)


@kind(2.0)
def astype(d: Draw) -> Step:
    a = d.value()
    to = np.dtype(d.choice(("f8", "f8", "f4", "c16", "c8", "i8", "i4", "?", "f2")))
    if a.kind == "c" and to.kind != "c":
        raise Unfit("the imaginary part would be lost")
    if to.kind in "iub" and not (a.exact and a.finite):
        raise Unfit("an element may be rounded to one integer or to the next")
    if to.kind in "iu" and a.largest > np.iinfo(to).max:
        raise Unfit("integers may overflow")
    text = f"{a.name}.astype({to.str!r})"
    fine = to.kind not in "fc" or (a.kind in "fc" and eps(to) <= eps(a.dtype))
    return both(text, a.error, 0.0 if fine or a.exact else a.largest)


@kind()
def nan_to_num(d: Draw) -> Step:
    a = d.value(lambda v: v.kind in "fc")
    zeros = f"xp.where(xp.isfinite({a.name}), {a.name}, 0)"
    return both(zeros, a.error)


@kind(0.5)
def broadcast(d: Draw) -> Step:
    a = d.value(lambda v: v.ndim < 3)
    shape = (d.integer(1, 5), *a.shape)
    chunks = d.chunks(shape[:1]) + a.lazy.chunks
    into = f"{a.name}, {shape}"
    if a.known and d.chance(0.5):
        into = f"{a.rechunked}, {shape}, chunks={chunks}"
    return dask_only(f"np.broadcast_to({a.name}, {shape})", f"da.broadcast_to({into})", a.error)
