"""Cosine and sine transforms of Dask arrays: the functions of ``scipy.fft``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from dask.array.core import Array

from dask_dgpu.arguments import as_array, integer
from dask_dgpu.array.fft.arguments import along_axes_trigonometric
from dask_dgpu.array.fft.call import planned, public

Lengths = Sequence[int] | None
Axes = Sequence[int] | None

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


class OneAxis(Protocol):
    """A transform along one axis."""

    def __call__(
        self, x: Any, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None
    ) -> Array:
        """Return the transform."""


class SeveralAxes(Protocol):
    """A transform along several axes."""

    def __call__(
        self, x: Any, type: int = 2, s: Lengths = None, axes: Axes = None, norm: str | None = None
    ) -> Array:
        """Return the transform."""


def _one_axis(name: str, summary: str) -> OneAxis:
    def function(
        x: Any, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None
    ) -> Array:
        x = as_array("x", x)
        s = None if n is None else (integer("n", n),)
        axes = (integer("axis", axis),)
        transforms = along_axes_trigonometric(name, x, type, s, axes, norm, names=("n", "axis"))
        return planned(name, x, transforms, argument="x")

    sections = (ARRAY + ONE_AXIS + REST).format(name=name)
    return public(function, __name__, name, summary + sections)


def _several_axes(name: str, summary: str) -> SeveralAxes:
    kind = name.removesuffix("n")

    def function(
        x: Any, type: int = 2, s: Lengths = None, axes: Axes = None, norm: str | None = None
    ) -> Array:
        x = as_array("x", x)
        transforms = along_axes_trigonometric(kind, x, type, s, axes, norm, names=("s", "axes"))
        return planned(name, x, transforms, argument="x")

    sections = (ARRAY + SEVERAL_AXES + REST).format(name=name)
    return public(function, __name__, name, summary + sections)


dct = _one_axis("dct", "Compute the discrete cosine transform along one axis.")
idct = _one_axis("idct", "Compute the inverse discrete cosine transform along one axis.")
dst = _one_axis("dst", "Compute the discrete sine transform along one axis.")
idst = _one_axis("idst", "Compute the inverse discrete sine transform along one axis.")
dctn = _several_axes("dctn", "Compute the discrete cosine transform along several axes.")
idctn = _several_axes("idctn", "Compute the inverse discrete cosine transform along several axes.")
dstn = _several_axes("dstn", "Compute the discrete sine transform along several axes.")
idstn = _several_axes("idstn", "Compute the inverse discrete sine transform along several axes.")
