"""Operations that only move elements."""

from __future__ import annotations

from tests.fuzz.draw import Draw
from tests.fuzz.kinds.registry import kind
from tests.fuzz.values import Step, Unfit, Value, both, dask_only

MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


def has_axes(value: Value) -> bool:
    return value.ndim > 0


def is_known(value: Value) -> bool:
    return value.known


@kind(2.0)
def transpose(d: Draw) -> Step:
    a = d.value(lambda v: v.ndim > 1)
    order = tuple(int(axis) for axis in d.rng.permutation(a.ndim))
    return both(f"xp.transpose({a.name}, {order})", a.error)


@kind()
def moveaxis(d: Draw) -> Step:
    a = d.value(lambda v: v.ndim > 1)
    name = d.choice(("moveaxis", "swapaxes"))
    return both(f"xp.{name}({a.name}, {d.axis(a)}, {d.axis(a)})", a.error)


@kind(4.0)
def rechunk(d: Draw) -> Step:
    a = d.value(has_axes, is_known)
    return dask_only(a.name, f"{a.name}.rechunk({d.chunks(a.shape)})", a.error)


def a_slice(d: Draw, n: int) -> str:
    style = d.integer(0, 6)
    if style == 0:
        return str(d.integer(-n, n - 1)) if n else ":"
    if style == 1:
        return f"{d.integer(-n, n)}:{d.integer(-n, n)}:{d.choice((1, 1, 2, 3, -1, -2))}"
    if style == 2:
        return f"::{d.choice((-1, 2, -2, 3))}"
    if style == 3:
        return f"{d.integer(0, n // 2)}:{d.integer(n // 2, n)}"
    return ":"


@kind(4.0)
def sliced(d: Draw) -> Step:
    a = d.value(has_axes, is_known)
    parts = [a_slice(d, n) for n in a.shape]
    if d.chance(0.2):
        parts.insert(d.integer(0, len(parts)), "None")
    return both(f"{a.name}[{', '.join(parts)}]", a.error)


@kind()
def listed(d: Draw) -> Step:
    a = d.value(has_axes, is_known, lambda v: min(v.shape) > 0)
    axis = d.axis(a)
    n = a.shape[axis]
    indices = [d.integer(-n, n - 1) for _ in range(d.integer(1, n + 2))]
    if d.chance(0.4):
        return both(f"xp.take({a.name}, {indices}, axis={axis})", a.error)
    parts = [":"] * a.ndim
    parts[axis] = str(indices)
    return both(f"{a.name}[{', '.join(parts)}]", a.error)


@kind(2.0)
def masked(d: Draw) -> Step:
    """A boolean mask along an axis; one of Dask leaves chunks of unknown sizes."""
    a = d.value(has_axes)
    axis = d.axis(a)
    size = a.shape[axis]
    mask = f"numbers({d.integer(0, 10**6)}, ({size},), '?')"
    at = ":, " * axis
    if d.chance(0.3):
        return both(f"{a.name}[{at}{mask}]", a.error)
    chunks = a.lazy.chunks[axis : axis + 1] if a.known else d.chunks((size,))
    lazy = f"da.from_array({mask}, chunks={chunks}, name=False)"
    return dask_only(f"{a.name}[{at}{mask}]", f"{a.name}[{at}{lazy}]", a.error)


@kind()
def assigned(d: Draw) -> Step:
    a = d.value(has_axes, is_known)
    axis = d.axis(a)
    n = a.shape[axis]
    index = (slice(None),) * axis + (slice(d.integer(0, n), d.integer(0, n)),)
    value = d.integer(0, 3)
    text = f"assigned({a.name}, {index}, {value})"
    if d.chance(0.3) and a.exact and a.kind in "iuf":
        text = f"assigned({a.name}, {a.name} > 1, {value})"
    return both(text, a.error)


@kind()
def picked_blocks(d: Draw) -> Step:
    a = d.value(has_axes, is_known)
    axis = d.axis(a)
    ends = [0]
    for size in a.lazy.chunks[axis]:
        ends.append(ends[-1] + size)
    first = d.integer(0, len(ends) - 2)
    last = d.integer(first + 1, len(ends) - 1)
    at = ":, " * axis
    return dask_only(
        f"{a.name}[{at}{ends[first]}:{ends[last]}]",
        f"{a.rechunked}.blocks[{at}{first}:{last}]",
        a.error,
    )


@kind()
def block(d: Draw) -> Step:
    a = d.value(lambda v: v.ndim == 2)
    b = d.value(lambda v: v.ndim == 2 and v.shape[0] == a.shape[0])
    text = f"xp.block([[{a.name}, {b.name}], [{b.name}, {a.name}]])"
    return both(text, max(a.error, b.error))


@kind(0.7)
def masked_by_itself(d: Draw) -> Step:
    a = d.value(lambda v: v.ndim == 1 and v.exact and v.kind in "iuf")
    return both(f"{a.name}[{a.name} > {d.integer(-1, 1)}]", a.error)


def alike(d: Draw, a: Value, axis: int | None) -> list[Value]:
    """Some values of the shape of one, but for an axis, and this one."""

    def fits(v: Value) -> bool:
        return v.ndim == a.ndim and all(
            n == m or at == axis for at, (n, m) in enumerate(zip(v.shape, a.shape, strict=True))
        )

    return [a, *(d.value(fits) for _ in range(d.integer(1, 2)))]


@kind(2.0)
def concatenate(d: Draw) -> Step:
    a = d.value(has_axes)
    axis = d.axis(a)
    parts = alike(d, a, axis)
    names = ", ".join(part.name for part in parts)
    return both(f"xp.concatenate([{names}], axis={axis})", max(part.error for part in parts))


@kind()
def stack(d: Draw) -> Step:
    a = d.value(lambda v: v.ndim < 3)
    parts = alike(d, a, None)
    names = ", ".join(part.name for part in parts)
    axis = d.integer(0, a.ndim)
    return both(f"xp.stack([{names}], axis={axis})", max(part.error for part in parts))


@kind(1.5)
def reshape(d: Draw) -> Step:
    a = d.value(has_axes, is_known)
    n = a.array.size
    if d.chance(0.3):
        return both(f"xp.ravel({a.name})", a.error)
    divisors = [m for m in range(1, n + 1) if n % m == 0]
    first = d.choice(divisors)
    shape: tuple[int, ...] = (first, n // first)
    if d.chance(0.3):
        second = d.choice([m for m in range(1, shape[1] + 1) if shape[1] % m == 0])
        shape = (first, second, shape[1] // second)
    # whether Dask's can split an axis depends on the chunks
    return dask_only(f"{a.name}.reshape({shape})", f"{a.rechunked}.reshape({shape})", a.error)


@kind()
def flip(d: Draw) -> Step:
    a = d.value(has_axes)
    return both(f"xp.flip({a.name}, {d.axis(a)})", a.error)


@kind()
def rot90(d: Draw) -> Step:
    a = d.value(lambda v: v.ndim > 1)
    return both(f"xp.rot90({a.name}, {d.integer(1, 3)})", a.error)


@kind(1.5)
def roll(d: Draw) -> Step:
    a = d.value(has_axes, is_known)
    if d.chance(0.2):
        return both(f"xp.roll({a.name}, {d.integer(-9, 9)})", a.error)
    return both(f"xp.roll({a.name}, {d.integer(-9, 9)}, axis={d.axis(a)})", a.error)


@kind(1.5)
def pad(d: Draw) -> Step:
    a = d.value(has_axes, is_known)
    mode = d.choice(MODES)
    widths = [(d.integer(0, 3), d.integer(0, 3)) for _ in a.shape]
    return both(f"xp.pad({a.name}, {widths}, mode={mode!r})", a.error)


@kind(0.7)
def squeezed(d: Draw) -> Step:
    a = d.value(lambda v: v.ndim < 4)
    if 1 in a.shape and d.chance(0.6):
        return both(f"xp.squeeze({a.name}, axis={a.shape.index(1)})", a.error)
    return both(f"xp.expand_dims({a.name}, {d.integer(0, a.ndim)})", a.error)


@kind()
def repeated(d: Draw) -> Step:
    a = d.value(has_axes, is_known, lambda v: v.array.size < 400)
    if d.chance(0.5):
        return both(f"xp.repeat({a.name}, {d.integer(0, 3)}, axis={d.axis(a)})", a.error)
    return both(f"xp.tile({a.name}, {tuple(d.integer(1, 2) for _ in a.shape)})", a.error)


@kind()
def triangle(d: Draw) -> Step:
    a = d.value(lambda v: v.ndim > 1, is_known)
    return both(f"xp.{d.choice(('triu', 'tril'))}({a.name}, {d.integer(-2, 2)})", a.error)


@kind()
def diagonal(d: Draw) -> Step:
    a = d.value(lambda v: v.ndim in (1, 2), is_known)
    if a.ndim == 1 and a.array.size > 20:
        raise Unfit("the matrix would be large")
    return both(f"xp.diag({a.name})", a.error)


@kind()
def diff(d: Draw) -> Step:
    a = d.value(has_axes, is_known, lambda v: v.kind in "ifc")
    n = d.integer(1, 2)
    text = f"xp.diff({a.name}, n={n}, axis={d.axis(a)})"
    return both(text, 2**n * a.error, 2**n * a.largest, adds=True)


@kind(0.5)
def created(d: Draw) -> Step:
    n, m = d.choice(d.sizes), d.choice(d.sizes)
    name = d.choice(("ones", "zeros", "full", "eye", "arange"))
    if name == "eye":
        return dask_only(f"np.eye({n})", f"da.eye({n}, chunks={d.integer(1, max(1, n))})")
    if name == "arange":
        return dask_only(f"np.arange({n}) * 1.0", f"da.arange({n}, chunks={d.chunks((n,))}) * 1.0")
    value = f", {d.integer(-3, 3)}.0" if name == "full" else ""
    return dask_only(
        f"np.{name}(({n}, {m}){value})",
        f"da.{name}(({n}, {m}){value}, chunks={d.chunks((n, m))})",
    )
