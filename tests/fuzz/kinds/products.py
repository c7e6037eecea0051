"""Contractions."""

from __future__ import annotations

import math

from tests.fuzz.draw import Draw
from tests.fuzz.kinds.elementwise import is_number
from tests.fuzz.kinds.movement import has_axes
from tests.fuzz.kinds.reductions import METHODS
from tests.fuzz.kinds.registry import kind
from tests.fuzz.values import Step, Unfit, Value, both, dask_only


def contraction(text: str, a: Value, b: Value, inner: int) -> Step:
    inner = max(1, inner)
    carried = inner * (a.error * (b.largest + b.error) + b.error * a.largest)
    return both(text, carried, inner * a.largest * b.largest, adds=True)


def meets(v: Value, n: int) -> bool:
    """Whether a value can stand to the right of a product whose inner length this is."""
    return v.ndim in (1, 2) and v.shape[0] == n


@kind(8.0)
def matmul(d: Draw) -> Step:
    a = d.value(lambda v: v.ndim in (1, 2), is_number)
    n = a.shape[-1]
    b = d.value(is_number, lambda v: meets(v, n))
    text = d.choice(("{} @ {}", "{} @ {}", "xp.matmul({}, {})", "xp.dot({}, {})"))
    return contraction(text.format(a.name, b.name), a, b, n)


@kind(4.0)
def gram(d: Draw) -> Step:
    a = d.value(lambda v: v.ndim == 2, is_number)
    text, inner = d.choice((("{0}.T @ {0}", a.shape[0]), ("{0} @ {0}.T", a.shape[1])))
    if a.kind == "c" and d.chance(0.5):
        text = text.replace(".T", ".conj().T")
    return contraction(text.format(a.name), a, a, inner)


@kind()
def stacked_matmul(d: Draw) -> Step:
    a = d.value(lambda v: v.ndim == 3, is_number)
    n = a.shape[-1]
    b = d.value(
        is_number,
        lambda v: (
            v.ndim in (2, 3) and v.shape[-2] == n and (v.ndim == 2 or v.shape[0] in (1, a.shape[0]))
        ),
    )
    return contraction(f"{a.name} @ {b.name}", a, b, n)


@kind(2.0)
def tensordot(d: Draw) -> Step:
    a = d.value(has_axes, is_number)
    n = d.choice(a.shape)
    b = d.value(has_axes, is_number, lambda v: n in v.shape and v.ndim + a.ndim < 6)
    axes = ([a.shape.index(n)], [b.shape.index(n)])
    return contraction(f"xp.tensordot({a.name}, {b.name}, axes={axes})", a, b, n)


@kind(2.0)
def einsum(d: Draw) -> Step:
    a = d.value(has_axes, is_number)
    n = d.choice(a.shape)
    b = d.value(has_axes, is_number, lambda v: n in v.shape and v.ndim + a.ndim < 6)
    left = "abc"[: a.ndim]
    shared = left[a.shape.index(n)]
    right = list("xyz"[: b.ndim])
    right[b.shape.index(n)] = shared
    letters = [each for each in (*left, *right) if each != shared or d.chance(0.15)]
    out = "".join(dict.fromkeys(d.rng.permutation(letters).tolist()))
    if out and d.chance(0.15):
        out = out[1:]
    text = f"xp.einsum('{left},{''.join(right)}->{out}', {a.name}, {b.name})"
    return contraction(text, a, b, a.array.size * b.array.size)


@kind()
def outer(d: Draw) -> Step:
    a = d.value(is_number, lambda v: v.ndim == 1)
    b = d.value(is_number, lambda v: v.ndim == 1)
    return contraction(f"xp.outer({a.name}, {b.name})", a, b, 1)


@kind()
def vdot(d: Draw) -> Step:
    a = d.value(is_number, has_axes)
    b = d.value(is_number, lambda v: v.shape == a.shape)
    return contraction(f"xp.vdot({a.name}, {b.name})", a, b, math.prod(a.shape))


@kind()
def trusted_dot(d: Draw) -> Step:
    a = d.value(lambda v: v.ndim == 1 and v.kind in "fc")
    b = d.value(lambda v: v.shape == a.shape and v.kind in "fc")
    if not (a.known and b.known):
        raise Unfit("chunks are unknown")
    step = contraction(f"xp.dot({a.name}, {b.name})", a, b, a.shape[0])
    ours = f"dgpu.dot({a.name}, {b.name}, method={d.choice(METHODS)!r})"
    return dask_only(step.numpy, ours, step.carried, step.work)


@kind()
def contracted(d: Draw) -> Step:
    """``dgpu.einsum`` of three operands, perhaps in slices."""
    a = d.value(lambda v: v.ndim == 2, is_number)
    if not a.known:
        raise Unfit("chunks are unknown")
    text = d.choice(("ij,kj,kl->il", "ij,kj,kl->l", "ij,ij,kj->ki", "ij,jk,kj->i"))
    if "jk" in text and a.shape[0] != a.shape[1]:
        raise Unfit("no square matrix")
    limit = d.choice((None, 16 * max(a.shape)))
    operands = ", ".join([a.name] * 3)
    inner = max(1, a.array.size) * max(a.shape)
    size = a.largest + a.error
    return dask_only(
        f"np.einsum('{text}', {operands})",
        f"dgpu.einsum('{text}', {operands}, memory_limit={limit})",
        inner * 3 * a.error * size**2,
        inner * size**3,
        adds=True,
    )
