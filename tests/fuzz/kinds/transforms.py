"""Fourier, cosine and sine transforms."""

from __future__ import annotations

import math

from tests.fuzz.draw import Draw
from tests.fuzz.kinds.movement import has_axes, is_known
from tests.fuzz.kinds.registry import kind
from tests.fuzz.values import Step, Value, dask_only

LINES = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
GRIDS = ("fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn")
NORMS = ("", "", ", norm='ortho'", ", norm='forward'")


def is_fit(value: Value) -> bool:
    return value.finite and value.kind in "fciu" and min(value.shape, default=0) > 0


def transform(numpy: str, plain: str, ours: str, a: Value, n: int) -> Step:
    n = 4 * max(1, n)
    return Step(numpy, plain, ours, n * a.error, n * math.log2(n) * a.largest)


def module(d: Draw) -> str:
    return d.choice(("da.fft", "dgpu.fft"))


@kind(4.0)
def fft(d: Draw) -> Step:
    a = d.value(has_axes, is_known, is_fit)
    name = d.choice(LINES)
    axis = d.axis(a)
    n = d.integer(1, 2 * a.shape[axis]) if d.chance(0.3) else None
    how = f"n={n}, axis={axis}{d.choice(NORMS)}"
    most = max(n or 0, 2 * a.shape[axis])
    return transform(
        f"np.fft.{name}({a.name}, {how})",
        f"da.fft.{name}({a.name}.rechunk({{{axis}: -1}}), {how})",
        f"{module(d)}.{name}({a.name}, {how})",
        a,
        most,
    )


@kind(3.0)
def fftn(d: Draw) -> Step:
    a = d.value(lambda v: v.ndim > 1, is_known, is_fit)
    name = d.choice(GRIDS)
    axes = (
        (-2, -1) if name.endswith("2") else tuple(sorted(d.some_axes(a), key=lambda x: x % a.ndim))
    )
    how = f"axes={axes}{d.choice(NORMS)}"
    if d.chance(0.2):
        lengths = tuple(d.integer(1, 2 * a.shape[axis]) for axis in axes)
        how += f", s={lengths}"
    else:
        lengths = tuple(2 * a.shape[axis] for axis in axes)
    whole = {axis % a.ndim: -1 for axis in axes}
    return transform(
        f"np.fft.{name}({a.name}, {how})",
        f"da.fft.{name}({a.name}.rechunk({whole}), {how})",
        f"{module(d)}.{name}({a.name}, {how})",
        a,
        math.prod(lengths),
    )


@kind()
def dct(d: Draw) -> Step:
    a = d.value(has_axes, is_known, is_fit)
    name = d.choice(("dct", "idct", "dst", "idst", "dctn", "idctn", "dstn", "idstn"))
    which = d.choice((1, 2, 2, 3, 4))
    axes = d.some_axes(a) if name.endswith("n") else (d.axis(a),)
    where = f"axes={axes}" if name.endswith("n") else f"axis={axes[0]}"
    how = f"type={which}, {where}{d.choice(NORMS)}"
    ours = f"dgpu.fft.{name}({a.name}, {how})"
    n = math.prod(2 * a.shape[axis] for axis in axes)
    return transform(f"scipy.fft.{name}({a.name}, {how})", ours, ours, a, n)


@kind()
def fftshift(d: Draw) -> Step:
    a = d.value(has_axes, is_known)
    name = d.choice(("fftshift", "ifftshift"))
    axes = d.axis(a)
    return dask_only(
        f"np.fft.{name}({a.name}, axes={axes})", f"da.fft.{name}({a.name}, axes={axes})", a.error
    )
