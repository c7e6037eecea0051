"""Functions of blocks, with ghost cells and without."""

from __future__ import annotations

import math

import numpy as np

from tests.fuzz.draw import Draw
from tests.fuzz.kinds.elementwise import is_number
from tests.fuzz.kinds.movement import has_axes, is_known
from tests.fuzz.kinds.registry import kind
from tests.fuzz.values import Step, Unfit, dask_only

BOUNDARIES = ("periodic", "reflect", "nearest", "none", 0, 2)
BEYOND = ("zero", "periodic", "reflect", "mirror", "nearest", 1)


@kind(5.0)
def map_overlap(d: Draw) -> Step:
    a = d.value(has_axes, is_known, is_number, lambda v: 0 not in v.shape)
    depth = tuple(min(n, d.choice((0, 1, 1, 2, 3))) for n in a.shape)
    one = d.choice(BOUNDARIES)
    boundary = tuple(one if d.chance(0.7) else d.choice(BOUNDARIES) for _ in a.shape)
    per_axis = f"depth={dict(enumerate(depth))}, boundary={dict(enumerate(boundary))}"
    taps = 3**a.ndim
    function = f"partial(neighbours, depth={depth})"
    return dask_only(
        f"neighbours_beyond({a.name}, {depth}, {boundary})",
        f"da.map_overlap({function}, {a.name}, {per_axis}, dtype={a.dtype.str!r})",
        taps * a.error,
        taps * (a.largest + 2),
        adds=True,
    )


@kind()
def map_overlap_of_two(d: Draw) -> Step:
    a = d.value(has_axes, is_known, is_number, lambda v: 0 not in v.shape)
    b = d.value(is_known, is_number, lambda v: v.shape == a.shape)
    depth = tuple(min(n, d.choice((0, 1, 2))) for n in a.shape)
    beyond = d.choice(("periodic", "reflect", "nearest"))
    boundary = (beyond,) * a.ndim
    how = f"depth={dict(enumerate(depth))}, boundary={beyond!r}"
    if a.dtype != b.dtype:
        raise Unfit("dtypes differ")
    taps = 3**a.ndim
    function = f"partial(both_neighbours, depth={depth})"
    wide = [f"neighbours_beyond({v.name}, {depth}, {boundary})" for v in (a, b)]
    return dask_only(
        " - ".join(wide),
        f"da.map_overlap({function}, {a.name}, {b.name}, {how}, dtype={a.dtype.str!r})",
        taps * (a.error + b.error),
        taps * (a.largest + b.largest),
        adds=True,
    )


@kind()
def overlap(d: Draw) -> Step:
    a = d.value(has_axes, is_known, lambda v: 0 not in v.shape)
    depth = {axis: d.integer(0, min(2, n)) for axis, n in enumerate(a.shape)}
    boundary = d.choice(("periodic", "reflect", "nearest"))
    wide = f"da.overlap.overlap({a.name}, {depth}, {boundary!r})"
    return dask_only(a.name, f"da.overlap.trim_internal({wide}, {depth}, {boundary!r})", a.error)


@kind()
def gradient(d: Draw) -> Step:
    a = d.value(has_axes, is_known, lambda v: v.kind in "fc")
    axis, carried, work = d.axis(a), 2 * a.error, 2 * a.largest
    return dask_only(
        f"np.gradient({a.name}, axis={axis})",
        f"da.gradient({a.rechunked}, axis={axis})",
        carried,
        work,
    )


@kind()
def apply_along_axis(d: Draw) -> Step:
    a = d.value(has_axes, lambda v: v.kind in "fc" and v.dtype.itemsize > 2)
    axis = d.axis(a)
    n = max(1, a.shape[axis])
    more = f", shape=(), dtype={a.dtype.str!r}"
    return dask_only(
        f"np.apply_along_axis(line_sum, {axis}, {a.name})",
        f"da.apply_along_axis(line_sum, {axis}, {a.name}{more})",
        n * a.error,
        n * a.largest,
        adds=True,
    )


@kind()
def blockwise(d: Draw) -> Step:
    """A row of sums for each pair of blocks, as a function of both."""
    a = d.value(lambda v: v.ndim == 2, is_number)
    b = d.value(lambda v: v.ndim == 2 and v.shape == a.shape[::-1], is_number)
    name, dtype = f"{a.name}, 'ij', {b.name}.T, 'ij'", (a.array[:0] + b.array.T[:0]).dtype
    return dask_only(
        f"{a.name} + {b.name}.T",
        f"da.blockwise(added, 'ij', {name}, dtype={dtype.str!r})",
        a.error + b.error,
        a.largest + b.largest,
        adds=True,
    )


@kind(2.0)
def map_blocks(d: Draw) -> Step:
    a = d.value(is_number)
    factor = d.integer(2, 3)
    name = a.name
    carried, work = factor * a.error, factor * a.largest + 1
    dtype = f"dtype={a.dtype.str!r}"
    return dask_only(
        f"affine({name}, {factor})",
        f"da.map_blocks(affine, {name}, {factor}, {dtype})",
        carried,
        work,
        adds=True,
    )


@kind()
def map_blocks_with_places(d: Draw) -> Step:
    a = d.value(has_axes, is_known, lambda v: v.kind in "fc")
    text = f"da.map_blocks(numbered, {a.name}, dtype={a.dtype.str!r})"
    work = a.largest + sum(a.shape)
    return dask_only(f"numbered({a.name})", text, a.error, work, adds=True)


@kind(0.5)
def map_blocks_with_a_new_axis(d: Draw) -> Step:
    a = d.value(lambda v: v.ndim in (1, 2))
    text = f"da.map_blocks(widened, {a.name}, new_axis=0, dtype={a.dtype.str!r})"
    return dask_only(f"widened({a.name})", text, a.error)


@kind(3.0)
def stencil(d: Draw) -> Step:
    a = d.value(has_axes, is_known, is_number, lambda v: v.ndim < 4 and v.array.size < 3000)
    if a.kind == "f" and a.dtype.itemsize == 2:
        raise Unfit("float16 is computed in another precision")
    shape = tuple(2 * d.integer(0, min(1, n // 2)) + 1 for n in a.shape)
    kernel = np.array([d.integer(-2, 2) for _ in range(math.prod(shape))], "f8").reshape(shape)
    boundary = tuple(d.choice(BEYOND) for _ in a.shape)
    times = d.integer(1, 3)
    gain = max(1.0, float(abs(kernel).sum())) ** times
    weights = f"np.array({kernel.tolist()})"
    return dask_only(
        f"correlated({a.name}, {weights}, {boundary}, {times})",
        f"dgpu.stencil({a.name}, {weights}, boundary={boundary}, iterations={times})",
        gain * a.error,
        gain * (a.largest + 1),
        adds=True,
    )


@kind(3.0)
def conv2d(d: Draw) -> Step:
    a = d.value(
        is_known,
        lambda v: v.ndim == 3 and v.dtype in ("f4", "f8") and v.finite and 0 not in v.shape,
    )
    channels, *lengths = a.shape
    stride, padding, dilation = ((d.integer(low, 2), d.integer(low, 2)) for low in (1, 0, 1))
    most = (
        (n + 2 * p - 1) // step + 1 for n, p, step in zip(lengths, padding, dilation, strict=True)
    )
    shape = (d.integer(1, 2), channels, *(d.integer(1, min(3, n)) for n in most))
    weights = np.array([d.integer(-2, 2) for _ in range(math.prod(shape))], "f8").reshape(shape)
    text = f"np.array({weights.tolist()}, {a.dtype.str!r})"
    sum_of_weights = float(abs(weights).sum(axis=(1, 2, 3)).max())
    return dask_only(
        f"convolved({a.name}, {text}, {stride}, {padding}, {dilation})",
        f"dgpu.conv2d({a.name}[None], {text}, stride={stride}, padding={padding}, "
        f"dilation={dilation})[0]",
        sum_of_weights * a.error,
        shape[1] * shape[2] * shape[3] * 2 * a.largest,
        adds=True,
    )
