"""Fourier, cosine and sine transforms of Dask arrays along axes of any chunking.

The functions of ``numpy.fft``, with the same parameters, and from ``scipy.fft`` the cosine and
sine transforms ``dct``, ``dst``, ``dctn``, ``dstn`` and their inverses.

If every transformed axis is a single chunk, Dask computes the functions of ``numpy.fft``. Else
blocks move by a plan of slabs or pencils (see ``dask_dgpu.algorithms.pencil_fft``), and other
axes stay in chunks. An axis that is too long for a block stays in chunks too, with the four-step
algorithm or Bluestein's ([1]_, [2]_).

The functions work with any scheduler, with dask_dgpu enabled or not. :func:`dask_dgpu.enable`
replaces the functions of ``dask.array.fft`` by these, and so ``numpy.fft`` of Dask arrays.

A result has the chunks of the last step unless the setting ``dgpu.fft.output-layout`` is
``"input"``.

References
----------
.. [1] D. H. Bailey, "FFTs in external or hierarchical memory", The Journal of
   Supercomputing 4 (1990).
.. [2] L. I. Bluestein, "A linear filtering approach to the computation of discrete Fourier
   transform", IEEE Transactions on Audio and Electroacoustics 18 (1970).

Examples
--------
>>> import dask.array as da, dask_dgpu as dgpu
>>> x = da.ones((6, 8), chunks=(2, 4))
>>> y = dgpu.fft.fft2(x)
>>> y[0, 0].real.compute().item()
48.0
>>> dgpu.fft.ifft2(y).shape
(6, 8)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Protocol, TypeVar, cast

from dask.array.core import Array
from dask.array.fft import fftfreq, fftshift, ifftshift, rfftfreq

from dask_dgpu.arguments import as_array
from dask_dgpu.array.fft.call import along_axes, along_axis, planned, transformed, trigonometric
from dask_dgpu.kernels.fft import TO_HALF_COMPLEX, TO_REAL
from dask_dgpu.kinds import of_either_kind

__all__ = [
    "dct",
    "dctn",
    "dst",
    "dstn",
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "idct",
    "idctn",
    "idst",
    "idstn",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
]

Ints = Sequence[int] | None
Lengths = Sequence[int | None] | None
Function = TypeVar("Function", bound=Callable[..., Array])

DOCUMENTATION = """Compute the {what} along {some}.

    Parameters
    ----------
    {x} : array_like
        A Dask array in any chunks, or input of ``dask.array.asarray``. Blocks are NumPy or
        CuPy arrays of {numbers}.
{arguments}\
    norm : {{"backward", "ortho", "forward"}}, optional
        The scaled direction, as in ``{library}.fft``{orthogonal}.

    Returns
    -------
    dask.array.Array
        Of the dtype of ``{library}.fft``, with blocks of the type of ``{x}``.

    Raises
    ------
    ValueError
        If an axis does not exist (``AxisError``) or is given twice, {choice} is not allowed,
        chunk sizes are unknown{and_moves}, or a length is less than {least}.
    TypeError
        If the dtype is not of {numbers}, or a length is no integer.

    See Also
    --------
    {library}.fft.{name} : The definition.
"""

TYPE = """\
    type : {{1, 2, 3, 4}}, optional
        The type of the transform, as in SciPy; 2 by default.
"""

ONE_AXIS = """\
    n : int, optional
        Length along the axis, of the {which} after cropping or padding with zeros; by default
        {default}.
    axis : int, optional
        The axis, the last one by default.
"""

SEVERAL_AXES = """\
    s : sequence of int, optional
        Length along each of ``axes``, of the {which} after cropping or padding with zeros; -1
        selects that of ``{x}``. By default {default}.
    axes : sequence of int, optional
        The axes, all different; by default {axes}.{real_axis}
"""


def _public(function: Function, name: str, what: str, arguments: str) -> Function:
    """Return a function with the name of a public one, also for pickle, and a docstring."""
    kind, of_scipy = name.rstrip("2n"), TYPE in arguments
    x = "x" if of_scipy else "a"
    two, to_real, from_real = name.endswith("2"), kind in TO_REAL, kind in TO_HALF_COMPLEX
    fields = {
        "name": name,
        "what": what,
        "x": x,
        "some": "one axis" if ONE_AXIS in arguments else "two axes" if two else "several axes",
        "library": "scipy" if of_scipy else "numpy",
        "numbers": "real numbers" if from_real else "real or complex numbers",
        "orthogonal": '; ``"ortho"`` makes the transform orthogonal' if of_scipy else "",
        "least": "1, or than 2 for cosines of type 1" if of_scipy else "1",
        "and_moves": "" if of_scipy else " and blocks must move",
        "choice": "``type`` or ``norm``" if of_scipy else "``norm``",
        "which": "output" if to_real else "input",
        "default": "2 (m - 1) for a last axis of m" if to_real else f"that of ``{x}``",
        "axes": "the last two" if two else "all, or the last ones if ``s`` has fewer entries",
        "real_axis": " The last is the one of real numbers." if to_real or from_real else "",
    }
    function.__module__, function.__name__, function.__qualname__ = __name__, name, name
    function.__doc__ = DOCUMENTATION.format(**fields, arguments=arguments.format(**fields))
    either = of_either_kind(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Array:
        given = (*args, *kwargs.values())
        is_expression = any(type(each).__module__.startswith("dask_array.") for each in given)
        return (either if is_expression else function)(*args, **kwargs)

    return cast(Function, call)


class OneAxis(Protocol):
    """A transform along one axis."""

    def __call__(
        self, a: Any, n: int | None = None, axis: int | None = -1, norm: str | None = None
    ) -> Array: ...


def _one_axis(name: str, what: str) -> OneAxis:
    def function(
        a: Any, n: int | None = None, axis: int | None = -1, norm: str | None = None
    ) -> Array:
        x = as_array("a", a)
        transforms = along_axis(name, x, n, -1 if axis is None else axis, norm)
        return transformed(name, x, transforms, {"n": n, "axis": axis, "norm": norm})

    return _public(function, name, what, ONE_AXIS)


class SeveralAxes(Protocol):
    """A transform along several axes."""

    def __call__(
        self, a: Any, s: Lengths = None, axes: Ints = None, norm: str | None = None
    ) -> Array: ...


def _several_axes(name: str, what: str) -> SeveralAxes:
    default = (-2, -1) if name.endswith("2") else None

    def function(a: Any, s: Lengths = None, axes: Ints = default, norm: str | None = None) -> Array:
        x = as_array("a", a)
        transforms = along_axes(name.rstrip("2n"), x, s, axes, norm, default=default)
        return transformed(name, x, transforms, {"s": s, "axes": axes, "norm": norm})

    return _public(function, name, what, SEVERAL_AXES)


class TrigonometricAxis(Protocol):
    """A cosine or sine transform along one axis."""

    def __call__(
        self, x: Any, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None
    ) -> Array: ...


def _trigonometric_axis(name: str, what: str) -> TrigonometricAxis:
    def function(
        x: Any, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None
    ) -> Array:
        x = as_array("x", x)
        kind, scaling = trigonometric(name, type, norm)
        return planned(name, x, along_axis(kind, x, n, axis, scaling, array="x"), argument="x")

    return _public(function, name, what, TYPE + ONE_AXIS)


class TrigonometricAxes(Protocol):
    """A cosine or sine transform along several axes."""

    def __call__(
        self, x: Any, type: int = 2, s: Ints = None, axes: Ints = None, norm: str | None = None
    ) -> Array: ...


def _trigonometric_axes(name: str, what: str) -> TrigonometricAxes:
    def function(
        x: Any, type: int = 2, s: Ints = None, axes: Ints = None, norm: str | None = None
    ) -> Array:
        x = as_array("x", x)
        kind, scaling = trigonometric(name.removesuffix("n"), type, norm)
        return planned(name, x, along_axes(kind, x, s, axes, scaling, array="x"), argument="x")

    return _public(function, name, what, TYPE + SEVERAL_AXES)


fft = _one_axis("fft", "discrete Fourier transform")
ifft = _one_axis("ifft", "inverse discrete Fourier transform")
rfft = _one_axis("rfft", "discrete Fourier transform of real numbers")
irfft = _one_axis("irfft", "inverse of ``rfft``")
hfft = _one_axis("hfft", "real spectrum of a signal with Hermitian symmetry")
ihfft = _one_axis("ihfft", "inverse of ``hfft``")

fft2 = _several_axes("fft2", "discrete Fourier transform")
ifft2 = _several_axes("ifft2", "inverse discrete Fourier transform")
rfft2 = _several_axes("rfft2", "discrete Fourier transform of real numbers")
irfft2 = _several_axes("irfft2", "inverse of ``rfft2``")
fftn = _several_axes("fftn", "discrete Fourier transform")
ifftn = _several_axes("ifftn", "inverse discrete Fourier transform")
rfftn = _several_axes("rfftn", "discrete Fourier transform of real numbers")
irfftn = _several_axes("irfftn", "inverse of ``rfftn``")

dct = _trigonometric_axis("dct", "discrete cosine transform")
idct = _trigonometric_axis("idct", "inverse discrete cosine transform")
dst = _trigonometric_axis("dst", "discrete sine transform")
idst = _trigonometric_axis("idst", "inverse discrete sine transform")
dctn = _trigonometric_axes("dctn", "discrete cosine transform")
idctn = _trigonometric_axes("idctn", "inverse discrete cosine transform")
dstn = _trigonometric_axes("dstn", "discrete sine transform")
idstn = _trigonometric_axes("idstn", "inverse discrete sine transform")
