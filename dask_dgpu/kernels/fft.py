"""Discrete Fourier, cosine and sine transforms of one block, for NumPy and CuPy alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Protocol

import numpy as np
import scipy.fft

from dask_dgpu.kernels import trigonometric

Array = Any

COMPLEX = ("fft", "ifft")


class OneTransform(Protocol):
    """One transform along one axis, by NumPy's and SciPy's definitions."""

    @property
    def kind(self) -> str:
        """Name of the function in ``numpy.fft``, or that in ``scipy.fft`` and the type."""

    @property
    def axis(self) -> int:
        """The axis."""

    @property
    def n(self) -> int:
        """Length as in ``numpy.fft``."""

    @property
    def norm(self) -> str:
        """As in ``numpy.fft``."""

    @property
    def output_length(self) -> int:
        """Length of the result along the axis."""

    def output_dtype(self, dtype: str) -> str:
        """Return the dtype that NumPy gives the result."""


def transform(
    block: Array, transforms: Iterable[OneTransform], *, overwrite: bool = False
) -> Array:
    """Transform a block along some of its axes, one after the other.

    Parameters
    ----------
    block : numpy.ndarray or cupy.ndarray
        Of any real or complex dtype; a CuPy array is transformed on its device, on
        CuPy's current stream.
    transforms : iterable of Transform
        What to do, in order.
    overwrite : bool, optional
        Whether the memory of ``block`` may be used for the result.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        Of the dtype that NumPy gives it; single precision stays single.
    """
    if block.size == 0:  # no library promises that it takes this
        return _zeros(block, list(transforms))
    on_host = isinstance(block, np.ndarray)
    options = {"workers": 1} if on_host else {}
    module = scipy.fft if on_host else _cupy_fft()
    result, dtype = block, block.dtype.name
    for name, arguments, group in _calls(transforms):
        mine = overwrite or result is not block
        for each in group:
            dtype = each.output_dtype(dtype)
        if "type" in arguments and not on_host:
            (one,) = group
            result = trigonometric.transform(
                result, one.kind, one.n, one.axis, one.norm, dtype, module
            )
        else:
            function = getattr(module, name)
            result = function(result, **arguments, **options, overwrite_x=mine)
    return result.astype(dtype, copy=False)


def _zeros(block: Array, transforms: list[OneTransform]) -> Array:
    shape, dtype = list(block.shape), block.dtype.name
    for each in transforms:
        shape[each.axis] = each.output_length
        dtype = each.output_dtype(dtype)
    return np.zeros_like(block, shape=tuple(shape), dtype=dtype)


def _calls(
    transforms: Iterable[OneTransform],
) -> Iterator[tuple[str, dict[str, Any], list[OneTransform]]]:
    """Yield function, arguments and transforms of each call.

    Complex transforms in a row are one call, which goes through the axes from the
    last to the first.
    """

    def together(each: OneTransform) -> tuple[str, str, int | None]:
        return each.kind, each.norm, None if each.kind in COMPLEX else each.axis

    for (kind, norm, axis), members in groupby(transforms, together):
        group = list(members)
        if axis is None:
            backwards = group[::-1]
            lengths, axes = [each.n for each in backwards], [each.axis for each in backwards]
            yield f"{kind}n", {"s": lengths, "axes": axes, "norm": norm}, group
        else:
            arguments = {"n": group[0].n, "axis": axis, "norm": norm}
            if kind[-1].isdigit():
                kind, arguments["type"] = kind[:-1], int(kind[-1])
            yield kind, arguments, group


def _cupy_fft() -> Any:
    import cupyx.scipy.fft

    return cupyx.scipy.fft
