"""Cosine and sine transforms of Dask arrays: the functions of ``scipy.fft``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from dask.array.core import Array

from dask_dgpu.arguments import as_array, integer
from dask_dgpu.array.fft.arguments import along_axes_trigonometric
from dask_dgpu.array.fft.call import planned

Lengths = Sequence[int] | None
Axes = Sequence[int] | None
Function = TypeVar("Function", bound=Callable[..., Array])

ARRAY = """

    Parameters
    ----------
    x : array_like
        A Dask array in any chunks, or input of ``dask.array.asarray``. Blocks are NumPy or
        CuPy arrays of real or complex numbers.
    type : {{1, 2, 3, 4}}, optional
        The type of the transform, as in SciPy; 2 by default.
"""

ONE_AXIS = """\
    n : int, optional
        Length along the axis, after cropping or padding with zeros; that of ``x`` by default.
    axis : int, optional
        The axis, the last one by default.
"""

SEVERAL_AXES = """\
    s : sequence of int, optional
        Length along each of ``axes``, after cropping or padding with zeros; -1 selects that of
        ``x``, the default.
    axes : sequence of int, optional
        The axes, all different; by default all, or the last ones if ``s`` has fewer entries.
"""

REST = """\
    norm : {{"backward", "ortho", "forward"}}, optional
        The scaled direction, as in ``scipy.fft``; ``"ortho"`` makes the transform orthogonal.

    Returns
    -------
    dask.array.Array
        Of SciPy's dtype, real if ``x`` is real, with blocks of the type of ``x``.

    Raises
    ------
    ValueError
        If the type or ``norm`` is not allowed, a length is less than 1, or than 2 for cosines
        of type 1, an axis does not exist (``AxisError``) or is given twice, or chunk sizes
        are unknown.
    TypeError
        If the dtype is not of numbers, or a length is no integer.

    See Also
    --------
    scipy.fft.{name} : The definition.
"""


def _documented(function: Function) -> Function:
    """Append the common sections of the docstrings."""
    name = function.__name__
    axes = SEVERAL_AXES if name.endswith("n") else ONE_AXIS
    text = "".join(part.format(name=name) for part in (ARRAY, axes, REST))
    function.__doc__ = (function.__doc__ or "") + text
    return function


def _line(name: str, x: Any, type: int, n: int | None, axis: int, norm: str | None) -> Array:
    x = as_array("x", x)
    s = None if n is None else (integer("n", n),)
    axes = (integer("axis", axis),)
    transforms = along_axes_trigonometric(name, x, type, s, axes, norm, names=("n", "axis"))
    return planned(name, x, transforms, argument="x")


def _grid(name: str, x: Any, type: int, s: Lengths, axes: Axes, norm: str | None) -> Array:
    x = as_array("x", x)
    kind = name.removesuffix("n")
    transforms = along_axes_trigonometric(kind, x, type, s, axes, norm, names=("s", "axes"))
    return planned(name, x, transforms, argument="x")


@_documented
def dct(
    x: Any, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None
) -> Array:
    """Compute the discrete cosine transform along one axis."""
    return _line("dct", x, type, n, axis, norm)


@_documented
def idct(
    x: Any, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None
) -> Array:
    """Compute the inverse discrete cosine transform along one axis."""
    return _line("idct", x, type, n, axis, norm)


@_documented
def dst(
    x: Any, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None
) -> Array:
    """Compute the discrete sine transform along one axis."""
    return _line("dst", x, type, n, axis, norm)


@_documented
def idst(
    x: Any, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None
) -> Array:
    """Compute the inverse discrete sine transform along one axis."""
    return _line("idst", x, type, n, axis, norm)


@_documented
def dctn(
    x: Any, type: int = 2, s: Lengths = None, axes: Axes = None, norm: str | None = None
) -> Array:
    """Compute the discrete cosine transform along several axes."""
    return _grid("dctn", x, type, s, axes, norm)


@_documented
def idctn(
    x: Any, type: int = 2, s: Lengths = None, axes: Axes = None, norm: str | None = None
) -> Array:
    """Compute the inverse discrete cosine transform along several axes."""
    return _grid("idctn", x, type, s, axes, norm)


@_documented
def dstn(
    x: Any, type: int = 2, s: Lengths = None, axes: Axes = None, norm: str | None = None
) -> Array:
    """Compute the discrete sine transform along several axes."""
    return _grid("dstn", x, type, s, axes, norm)


@_documented
def idstn(
    x: Any, type: int = 2, s: Lengths = None, axes: Axes = None, norm: str | None = None
) -> Array:
    """Compute the inverse discrete sine transform along several axes."""
    return _grid("idstn", x, type, s, axes, norm)
