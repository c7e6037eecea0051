"""Operations that make one element of many."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tests.fuzz.draw import Draw
from tests.fuzz.kinds.elementwise import is_exact, is_number, is_real
from tests.fuzz.kinds.movement import has_axes, is_known
from tests.fuzz.kinds.registry import kind
from tests.fuzz.values import Step, Unfit, Value, both, dask_only, in_plain_chunks

METHODS = ("compensated", "reproducible", "dask")


def count(a: Value, axis: int | Sequence[int] | None) -> int:
    """How many elements are reduced to one."""
    axes = range(a.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    return max(1, math.prod(a.shape[each] for each in axes))


def drawn(d: Draw, a: Value) -> tuple[str, int]:
    """The arguments of a reduction, and how many elements it reduces to one."""
    axis = d.reduction_axis(a)
    keep = ", keepdims=True" if d.chance(0.4) else ""
    return f"axis={axis}{keep}", count(a, axis)


@kind(5.0)
def summed(d: Draw) -> Step:
    a = d.value()
    how, n = drawn(d, a)
    split = f", split_every={d.integer(2, 4)}" if d.chance(0.3) else ""
    name = "nansum" if d.chance(0.1) else "sum"
    return dask_only(
        f"np.{name}({a.name}, {how})",
        f"da.{name}({a.name}, {how}{split})",
        n * a.error,
        n * a.largest,
        adds=True,
    )


@kind(3.0)
def averaged(d: Draw) -> Step:
    a = d.value()
    how, n = drawn(d, a)
    return both(f"xp.mean({a.name}, {how})", a.error, (n + 1) * a.largest)


@kind(2.0)
def spread(d: Draw) -> Step:
    a = d.value(lambda v: v.kind in "fc")
    how, n = drawn(d, a)
    ddof = f", ddof={d.integer(0, 1)}" if d.chance(0.5) else ""
    if n < 3:
        raise Unfit("too few elements for a variance")
    work = 4 * n * a.largest**2
    return in_plain_chunks(a, f"xp.var({{a}}, {how}{ddof})", 8 * a.largest * a.error, work)


@kind()
def deviation(d: Draw) -> Step:
    a = d.value(lambda v: v.kind in "fc")
    how, n = drawn(d, a)
    unit = float(np.finfo(a.dtype).eps)
    carried = 2 * a.error + 4 * a.largest * math.sqrt(n * unit)
    return in_plain_chunks(a, f"xp.std({{a}}, {how})", carried, a.largest)


@kind(3.0)
def least_and_largest(d: Draw) -> Step:
    a = d.value(is_real)
    how, _ = drawn(d, a)
    name = d.choice(("min", "max"))
    return in_plain_chunks(a, f"xp.{name}({{a}}, {how})", a.error)


@kind(2.0)
def places(d: Draw) -> Step:
    a = d.value(is_exact, is_real, has_axes, is_known)
    axis = d.axis(a) if d.chance(0.8) else None
    keep = ", keepdims=True" if d.chance(0.3) else ""
    name = d.choice(("argmin", "argmax"))
    return in_plain_chunks(a, f"xp.{name}({{a}}, axis={axis}{keep})")


@kind()
def truths(d: Draw) -> Step:
    a = d.value(is_exact)
    how, _ = drawn(d, a)
    return both(f"xp.{d.choice(('any', 'all'))}({a.name}, {how})")


@kind()
def counted(d: Draw) -> Step:
    a = d.value(is_exact)
    return both(f"xp.count_nonzero({a.name}, axis={d.reduction_axis(a)})")


@kind()
def product(d: Draw) -> Step:
    a = d.value(lambda v: v.largest < 9, is_number)
    how, n = drawn(d, a)
    most = max(1.0, a.largest) ** min(n, 40)
    return both(f"xp.prod({a.name}, {how})", n * most * a.error, n * most, adds=True)


@kind(2.0)
def cumulative(d: Draw) -> Step:
    a = d.value(has_axes, is_number)
    axis = d.axis(a) if d.chance(0.8) or not a.known else None
    n = count(a, axis)
    name = "nancumsum" if d.chance(0.2) else "cumsum"
    method = f", method={d.choice(('sequential', 'blelloch'))!r}" if d.chance(0.5) else ""
    if any(0 in sizes for sizes in a.lazy.chunks) and "blelloch" not in method:
        raise Unfit("Dask's sequential sums lose elements after an empty chunk")
    return dask_only(
        f"np.{name}({a.name}, axis={axis})",
        f"da.{name}({a.rechunked}, axis={axis}{method})",
        n * a.error,
        n * a.largest,
        adds=True,
    )


@kind()
def cumulative_product(d: Draw) -> Step:
    a = d.value(has_axes, is_number, lambda v: v.largest < 9)
    axis = d.axis(a)
    n = count(a, axis)
    if 0 in a.lazy.chunks[axis]:
        raise Unfit("Dask's sequential products lose elements after an empty chunk")
    most = max(1.0, a.largest) ** min(n, 40)
    name = d.choice(("cumprod", "nancumprod"))
    return dask_only(
        f"np.{name}({a.name}, axis={axis})",
        f"da.{name}({a.rechunked}, axis={axis})",
        n * most * a.error,
        n * most,
        adds=True,
    )


@kind(0.5)
def largest_percentile(d: Draw) -> Step:
    """Dask's other percentiles are approximate."""
    a = d.value(is_real, is_number, is_known, lambda v: v.finite and v.ndim == 1 and v.array.size)
    return dask_only(
        f"np.percentile({a.name}, [100])", f"da.percentile({a.rechunked}, [100])", a.error
    )


@kind()
def counted_integers(d: Draw) -> Step:
    a = d.value(is_exact, lambda v: v.ndim == 1 and v.kind == "u" and v.known and v.array.size)
    length = int(a.largest) + 1
    return both(f"xp.bincount({a.name}, minlength={length})")


@kind(2.0)
def norm(d: Draw) -> Step:
    a = d.value(has_axes, lambda v: v.kind in "fc")
    n = max(1, a.array.size)
    if d.chance(0.6):
        how = f"axis={d.axis(a)}, ord={d.choice(('None', '1', '2', 'np.inf'))}"
    else:
        how = d.choice(("keepdims=True", "axis=None"))
    return in_plain_chunks(a, f"xp.linalg.norm({{a}}, {how})", n * a.error, n * a.largest)


@kind()
def topk(d: Draw) -> Step:
    a = d.value(is_real, is_number, is_known, lambda v: v.finite and v.ndim > 0)
    axis = d.axis(a)
    n = a.shape[axis]
    if not n:
        raise Unfit("Dask declares elements that are not there")
    k = d.integer(1, n) * d.choice((-1, 1))
    ordered = f"np.sort({a.name}, axis={axis})"
    part = f":{-k}" if k < 0 else f":-{k + 1}:-1"
    at = f"{':, ' * axis}{part}"
    return dask_only(f"{ordered}[{at}]", f"da.topk({a.name}, {k}, axis={axis})", a.error)


@kind()
def histogram(d: Draw) -> Step:
    a = d.value(is_exact, is_real, is_number, lambda v: v.finite)
    return both(f"xp.histogram({a.name}, bins=7, range=(-5, 6))[0]")


@kind(3.0)
def trusted(d: Draw) -> Step:
    """``dgpu.sum`` and its like."""
    a = d.value(lambda v: v.kind in "fciu")
    how, n = drawn(d, a)
    name, method = d.choice(("sum", "sum", "mean", "norm")), d.choice(METHODS)
    ours = f"dgpu.{name}({a.name}, {how}, method={method!r})"
    if name == "norm":
        axes = how.split(", keepdims")[0]
        numpy = f"np.sqrt(np.sum(np.square(np.abs({a.name})), {how}))"
        if a.kind not in "fc":
            raise Unfit(f"squares of integers may overflow along {axes}")
        return dask_only(numpy, ours, n * a.error, n * a.largest)
    carried = a.error * (n if name == "sum" else 1)
    return dask_only(f"np.{name}({a.name}, {how})", ours, carried, n * a.largest)


@kind()
def trusted_spread(d: Draw) -> Step:
    a = d.value(lambda v: v.kind in "fc", is_known)
    how, n = drawn(d, a)
    if n < 2:
        raise Unfit("too few elements for a variance")
    ours = f"dgpu.var({a.rechunked}, {how}, method={d.choice(METHODS)!r})"
    work = 4 * n * a.largest**2
    return dask_only(f"np.var({a.name}, {how})", ours, 8 * a.largest * a.error, work)


@kind()
def trusted_extremes(d: Draw) -> Step:
    a = d.value(is_real)
    how, _ = drawn(d, a)
    name = d.choice(("min", "max"))
    return dask_only(f"np.{name}({a.name}, {how})", f"dgpu.{name}({a.rechunked}, {how})", a.error)
