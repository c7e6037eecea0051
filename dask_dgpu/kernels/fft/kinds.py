"""The kinds of transforms, and a transform along one axis."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from graph_opt.model.layout import real_of

FOURIER = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
TRIGONOMETRIC = ("dct1", "dct2", "dct3", "dct4", "dst1", "dst2", "dst3", "dst4")
KINDS = FOURIER + TRIGONOMETRIC
TO_HALF_COMPLEX = ("rfft", "ihfft")
TO_REAL = ("irfft", "hfft")


@dataclass(frozen=True)
class Transform:
    """One discrete Fourier, cosine or sine transform along one axis.

    Parameters
    ----------
    kind : str
        A function of ``numpy.fft``: ``"fft"``, ``"ifft"``, ``"rfft"``, ``"irfft"``, ``"hfft"``
        or ``"ihfft"``; or ``"dct"`` or ``"dst"`` of ``scipy.fft`` with the type, from ``"dct1"``
        to ``"dst4"``.
    axis : int
        The axis, from 0.
    n : int
        Length of the transform: of its input after cropping or padding, or of its output for
        ``irfft`` and ``hfft``.
    norm : {"backward", "ortho", "forward"}, optional
        As in ``numpy.fft`` and ``scipy.fft``.

    Raises
    ------
    ValueError
        If the kind is unknown or ``n`` is less than 1, or than 2 for ``"dct1"``.
    """

    kind: str
    axis: int
    n: int
    norm: str = "backward"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"expected a kind among {', '.join(KINDS)}, got {self.kind!r}")
        least = 2 if self.kind == "dct1" else 1
        if self.n < least:
            raise ValueError(f"expected n of at least {least} for {self.kind}, got {self.n}")

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
        return complex_flops if self.kind in ("fft", "ifft") else complex_flops / 2

    def output_dtype(self, dtype: str) -> str:
        """Return the dtype of NumPy's, or SciPy's, result for input of a dtype."""
        if self.kind in TRIGONOMETRIC:
            least = np.float64 if np.dtype(dtype).kind in "biu" else np.float32
            return np.result_type(np.dtype(dtype), least).name
        if self.kind in TO_REAL:
            real = real_of(dtype)
            return np.result_type(real, 1.0).name
        return np.result_type(np.dtype(dtype), 1j).name
