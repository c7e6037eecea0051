"""Discrete Fourier, cosine and sine transforms of one block, for NumPy and CuPy alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import numpy as np
import scipy.fft

from dask_dgpu.kernels.fft import trigonometric
from dask_dgpu.kernels.fft.kinds import Transform

Array = Any
Arguments = dict[str, Any]

COMPLEX = ("fft", "ifft")


def transform(block: Array, transforms: Iterable[Transform], *, overwrite: bool = False) -> Array:
    """Transform a block along some of its axes, one after the other.

    Parameters
    ----------
    block : numpy.ndarray or cupy.ndarray
        Of any real or complex dtype; a CuPy array is transformed on CuPy's current stream.
    transforms : iterable of Transform
        In their order.
    overwrite : bool, optional
        Whether the result may overwrite ``block``.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        Of NumPy's dtype; single precision stays single.
    """
    if block.size == 0:  # libraries need not support empty arrays
        return _zeros(block, list(transforms))
    call = _on_host if isinstance(block, np.ndarray) else _on_device
    result, dtype = block, block.dtype.name
    for name, arguments, group in _calls(transforms):
        mine = overwrite or result is not block
        result = call(result, name, arguments, group, overwrite=mine)
        for each in group:
            dtype = each.output_dtype(dtype)
    return result.astype(dtype, copy=False)


def _on_host(
    block: Array, name: str, arguments: Arguments, _: list[Transform], *, overwrite: bool
) -> Array:
    return getattr(scipy.fft, name)(block, **arguments, overwrite_x=overwrite, workers=1)


def _on_device(
    block: Array, name: str, arguments: Arguments, group: list[Transform], *, overwrite: bool
) -> Array:
    """Call CuPy, unless it lacks the transform or would copy lines that need no copy."""
    import cupyx.scipy.fft

    if "type" in arguments:
        (one,) = group
        dtype = one.output_dtype(block.dtype.name)
        return trigonometric.transform(
            block, one.kind, one.n, one.axis, one.norm, dtype, cupyx.scipy.fft
        )
    in_lines = _in_lines(block, group, overwrite=overwrite)
    if in_lines is not None:
        return in_lines
    return getattr(cupyx.scipy.fft, name)(block, **arguments, overwrite_x=overwrite)


def _zeros(block: Array, transforms: list[Transform]) -> Array:
    shape, dtype = list(block.shape), block.dtype.name
    for each in transforms:
        shape[each.axis] = each.output_length
        dtype = each.output_dtype(dtype)
    return np.zeros_like(block, shape=tuple(shape), dtype=dtype)


def _calls(
    transforms: Iterable[Transform],
) -> Iterator[tuple[str, Arguments, list[Transform]]]:
    """Yield function, arguments and transforms of each call.

    Adjacent complex transforms are one call, from the last axis to the first.
    """

    def together(each: Transform) -> tuple[str, str, int | None]:
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


def _in_lines(block: Array, group: list[Transform], *, overwrite: bool) -> Array | None:
    """Transform a CuPy array without copying its lines first, if possible."""
    each = group[0]
    if len(group) > 1 or each.kind not in COMPLEX or block.shape[each.axis] != each.n:
        return None
    from dask_dgpu.kernels.fft.cuda import transformed

    inverse, factor = each.kind == "ifft", _factor(each)
    return transformed(block, each.axis, inverse=inverse, factor=factor, overwrite=overwrite)


def _factor(each: Transform) -> float:
    """Return the factor of the unnormalised transform."""
    if each.norm == "ortho":
        return each.n**-0.5
    return 1 / each.n if (each.norm == "forward") is (each.kind == "fft") else 1
