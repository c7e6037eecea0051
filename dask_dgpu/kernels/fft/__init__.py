"""Discrete Fourier, cosine and sine transforms of one block, for NumPy and CuPy alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import scipy.fft

from graph_opt.model.layout import real_of

Array = Any
Arguments = dict[str, Any]

COMPLEX = ("fft", "ifft")
TO_HALF_COMPLEX = ("rfft", "ihfft")
TO_REAL = ("irfft", "hfft")
TRIGONOMETRIC = ("dct1", "dct2", "dct3", "dct4", "dst1", "dst2", "dst3", "dst4")


@dataclass(frozen=True)
class Transform:
    """One discrete Fourier, cosine or sine transform along one axis, counted from 0.

    ``kind`` is a function of ``numpy.fft``, or ``dct`` or ``dst`` of ``scipy.fft`` with the type,
    from ``"dct1"`` to ``"dst4"``; ``norm`` is as there. ``n`` is the length of the input after
    cropping or padding, or of the output for ``irfft`` and ``hfft``.
    It is at least 1, or 2 for ``"dct1"``: functions of users check it.
    """

    kind: str
    axis: int
    n: int
    norm: str = "backward"

    @property
    def input_length(self) -> int:
        """Maximum number of input elements along the axis."""
        return self.n // 2 + 1 if self.kind in TO_REAL else self.n

    @property
    def output_length(self) -> int:
        """Length of the output along the axis."""
        return self.n // 2 + 1 if self.kind in TO_HALF_COMPLEX else self.n

    @property
    def flops(self) -> float:
        """Floating-point operations of a line, by the usual estimate."""
        complex_flops = 5 * self.n * math.log2(self.n)
        return complex_flops if self.kind in COMPLEX else complex_flops / 2

    @property
    def factor(self) -> float:
        """The factor of a complex transform for ``norm``."""
        if self.norm == "ortho":
            return self.n**-0.5
        return 1 / self.n if (self.norm == "forward") is (self.kind == "fft") else 1

    def output_dtype(self, dtype: str) -> str:
        """Return the dtype of NumPy's, or SciPy's, result for input of a dtype."""
        if self.kind in TRIGONOMETRIC:
            least = np.float64 if np.dtype(dtype).kind in "biu" else np.float32
            return np.result_type(np.dtype(dtype), least).name
        if self.kind in TO_REAL:
            return np.result_type(real_of(dtype), 1.0).name
        return np.result_type(np.dtype(dtype), 1j).name


def transform(block: Array, transforms: Iterable[Transform], *, overwrite: bool = False) -> Array:
    """Transform a block along some of its axes, one after the other, to NumPy's dtype.

    ``block`` has any real or complex dtype; a CuPy array is transformed on CuPy's current stream.
    ``overwrite`` allows the result to overwrite it.
    """
    transforms = list(transforms)
    shape, dtype = list(block.shape), block.dtype.name
    for transform in transforms:
        shape[transform.axis] = transform.output_length
        dtype = transform.output_dtype(dtype)
    if block.size == 0:  # libraries need not support empty arrays
        return np.zeros_like(block, shape=tuple(shape), dtype=dtype)
    result = block
    for name, arguments, group in _calls(transforms):
        mine = overwrite or result is not block
        if isinstance(result, np.ndarray):
            function = getattr(scipy.fft, name)
            result = function(result, **arguments, overwrite_x=mine, workers=1)
        else:
            from dask_dgpu.kernels.fft.cuda import ready_plans

            with ready_plans:
                result = _on_device(result, name, arguments, group, overwrite=mine)
    return result.astype(dtype, copy=False)


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
            lengths, axes = (
                [backward.n for backward in backwards],
                [each.axis for each in backwards],
            )
            yield f"{kind}n", {"s": lengths, "axes": axes, "norm": norm}, group
        else:
            arguments = {"n": group[0].n, "axis": axis, "norm": norm}
            if kind[-1].isdigit():
                kind, arguments["type"] = kind[:-1], int(kind[-1])
            yield kind, arguments, group


def _on_device(
    block: Array, name: str, arguments: Arguments, group: list[Transform], *, overwrite: bool
) -> Array:
    """Call CuPy, unless it lacks the transform or would copy lines that need no copy."""
    import cupyx.scipy.fft

    each = group[0]
    if each.kind in TRIGONOMETRIC:
        from dask_dgpu.kernels.fft import trigonometric_cuda

        dtype = each.output_dtype(block.dtype.name)
        return trigonometric_cuda.transform(block, each.kind, each.n, each.axis, each.norm, dtype)
    if len(group) == 1 and each.kind in COMPLEX and block.shape[each.axis] == each.n:
        from dask_dgpu.kernels.fft.cuda import transformed

        inverse, factor = each.kind == "ifft", each.factor
        result = transformed(block, each.axis, inverse=inverse, factor=factor, overwrite=overwrite)
        if result is not None:
            return result
    return getattr(cupyx.scipy.fft, name)(block, **arguments, overwrite_x=overwrite)
