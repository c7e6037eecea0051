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

from collections.abc import Sequence
from typing import Any, Protocol

from dask.array.core import Array
from dask.array.fft import fftfreq, fftshift, ifftshift, rfftfreq

from dask_dgpu.arguments import as_array
from dask_dgpu.array.fft.arguments import along_axes, along_axis
from dask_dgpu.array.fft.call import public, transformed
from dask_dgpu.array.fft.trigonometric import dct, dctn, dst, dstn, idct, idctn, idst, idstn

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

Axes = Sequence[int] | None
Lengths = Sequence[int | None] | None

LAST_TWO = (-2, -1)

ARRAY = """

    Parameters
    ----------
    a : array_like
        A Dask array in any chunks, or input of ``dask.array.asarray``. Blocks are NumPy or
        CuPy arrays{real}.
"""

ONE_AXIS = """\
    n : int, optional
        Length along the axis, of {which} after cropping or padding with zeros; by default
        {default}.
    axis : int, optional
        The axis, the last one by default.
"""

SEVERAL_AXES = """\
    s : sequence of int, optional
        Length along each of ``axes``, of {which} after cropping or padding with zeros; -1
        selects that of ``a``. By default {default}.
    axes : sequence of int, optional
        The axes, all different; by default {axes}. {real_axis}
"""

REST = """\
    norm : {{"backward", "ortho", "forward"}}, optional
        The scaled direction, as in ``numpy.fft``.

    Returns
    -------
    dask.array.Array
        Of NumPy's dtype, with blocks of the type of ``a``.

    Raises
    ------
    ValueError
        If a length is less than 1, an axis does not exist (``AxisError``) or is given twice,
        chunk sizes are unknown and blocks must move, or ``norm`` is not allowed.
    TypeError
        If the dtype is not of numbers{real}, or a length is no integer.

    See Also
    --------
    numpy.fft.{name} : The definition.
"""


class OneAxis(Protocol):
    """A transform along one axis."""

    def __call__(
        self, a: Any, n: int | None = None, axis: int | None = -1, norm: str | None = None
    ) -> Array:
        """Return the transform."""


class SeveralAxes(Protocol):
    """A transform along several axes."""

    def __call__(
        self, a: Any, s: Lengths = None, axes: Axes = None, norm: str | None = None
    ) -> Array:
        """Return the transform."""


def _sections(name: str, axes: str) -> str:
    """Return the sections of a docstring."""
    to_real = name.startswith(("irfft", "hfft"))
    from_real = name.startswith(("rfft", "ihfft"))
    values = {
        "name": name,
        "real": ", of real numbers" if from_real else "",
        "which": "the output" if to_real else "the input",
        "default": "2 (m - 1) for a last axis of m" if to_real else "that of ``a``",
        "axes": "the last two" if name.endswith("2") else "all",
        "real_axis": "The last is the one of real numbers." if to_real or from_real else "",
    }
    return "".join(part.format(**values) for part in (ARRAY, axes, REST))


def _one_axis(name: str, summary: str) -> OneAxis:
    def function(
        a: Any, n: int | None = None, axis: int | None = -1, norm: str | None = None
    ) -> Array:
        x = as_array("a", a)
        transforms = along_axis(name, x, n, axis, norm)
        return transformed(name, x, transforms, {"n": n, "axis": axis, "norm": norm})

    return public(function, __name__, name, summary + _sections(name, ONE_AXIS))


def _several_axes(name: str, summary: str) -> SeveralAxes:
    default = LAST_TWO if name.endswith("2") else None

    def function(a: Any, s: Lengths = None, axes: Axes = default, norm: str | None = None) -> Array:
        x = as_array("a", a)
        transforms = along_axes(name.rstrip("2n"), x, s, axes, norm, default=default)
        return transformed(name, x, transforms, {"s": s, "axes": axes, "norm": norm})

    return public(function, __name__, name, summary + _sections(name, SEVERAL_AXES))


fft = _one_axis("fft", "Compute the discrete Fourier transform along one axis.")
ifft = _one_axis("ifft", "Compute the inverse discrete Fourier transform along one axis.")
rfft = _one_axis("rfft", "Compute the discrete Fourier transform of real numbers along one axis.")
irfft = _one_axis("irfft", "Compute the inverse of ``rfft``.")
hfft = _one_axis(
    "hfft", "Compute the real spectrum of a signal with Hermitian symmetry along one axis."
)
ihfft = _one_axis("ihfft", "Compute the inverse of ``hfft``.")

fft2 = _several_axes("fft2", "Compute the discrete Fourier transform along two axes.")
ifft2 = _several_axes("ifft2", "Compute the inverse discrete Fourier transform along two axes.")
rfft2 = _several_axes(
    "rfft2", "Compute the discrete Fourier transform of real numbers along two axes."
)
irfft2 = _several_axes("irfft2", "Compute the inverse of ``rfft2``.")
fftn = _several_axes("fftn", "Compute the discrete Fourier transform along several axes.")
ifftn = _several_axes("ifftn", "Compute the inverse discrete Fourier transform along several axes.")
rfftn = _several_axes(
    "rfftn", "Compute the discrete Fourier transform of real numbers along several axes."
)
irfftn = _several_axes("irfftn", "Compute the inverse of ``rfftn``.")
