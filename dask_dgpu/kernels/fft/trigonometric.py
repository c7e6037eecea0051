"""Cosine and sine transforms along long axes, by one FFT each, for NumPy and CuPy alike.

All types are sums over cosines or sines of ``pi (m + a) (k + b) / M``, where ``a`` and ``b``
are 0, 1/2 or 1: real parts of ::

    y[k] = sum_m  x[m] exp(-pi i m b / M)  exp(-2 pi i m k / 2 M)  exp(-pi i a (k + b) / M)
           `------------ before ---------' `--- FFT, of 2 M ----'  `------- after -------'

An integer ``b`` is a position in the spectrum of real numbers (types I and II). Type III is the
transpose of type II, and its FFT is one to real numbers.

References
----------
.. [1] S. A. Martucci, "Symmetric convolution and the discrete sine and cosine transforms",
   IEEE Transactions on Signal Processing 42 (1994).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_dgpu.kernels.fft.factors import Start, aligned, roots_of_unity

Array = Any

SHIFTS = {
    "dct1": (0, 0),
    "dct2": (1, 0),
    "dct3": (1, 0),
    "dct4": (1, 1),
    "dst1": (2, 2),
    "dst2": (1, 2),
    "dst3": (1, 2),
    "dst4": (1, 1),
}
"""Twice ``a`` and ``b``; of type III those of type II."""
ENDS = {"dct1": (0, -1), "dct2": (0,), "dct3": (0,), "dst2": (-1,), "dst3": (-1,)}
"""Elements that occur once in a period of the extension; all others occur twice."""


@dataclass(frozen=True)
class Recipe:
    """A transform as one FFT: factors before, the FFT, factors after.

    ``kind``, ``n`` and ``norm`` are those of a ``Transform``.
    """

    kind: str
    n: int
    norm: str

    @property
    def fft(self) -> str:
        """The kind of the FFT."""
        return {1: "rfft", 2: "rfft", 3: "irfft", 4: "fft"}[self._type]

    @property
    def period(self) -> int:
        """Length of the FFT, SciPy's logical size of the transform."""
        return 2 * (self.n + {"dct1": -1, "dst1": 1}.get(self.kind, 0))

    @property
    def power(self) -> float:
        """The exponent of the period in the factor for ``norm``."""
        return {"backward": 0.0, "ortho": -0.5, "forward": -1.0}[self.norm]

    @property
    def first(self) -> int:
        """Position of the first element in the spectrum of real numbers."""
        return SHIFTS[self.kind][1] // 2

    @property
    def _type(self) -> int:
        return int(self.kind[-1])

    def before(self, block: Array, start: Start, axis: int) -> Array:
        """Return the input of the FFT, for real elements; it may be the block itself."""
        first, m = start[axis], _range(block, start, axis)
        ortho = math.sqrt(2) if self.norm == "ortho" else 1.0
        if self._type == 3:
            factors = self._ends(self._phases(m, block.dtype).conj(), first, ortho)
        elif self._type == 4:
            factors = roots_of_unity(m, 2 * self.period, -1, _complex(block.dtype))
        elif self.kind == "dct1":
            factors = self._ends(np.ones_like(m, dtype=np.float64), first, ortho / 2)
        else:
            return block
        dtype = block.dtype if factors.dtype.kind == "f" else _complex(block.dtype)
        return block * aligned(factors.astype(dtype, copy=False), axis, block.ndim)

    def after(self, block: Array, start: Start, axis: int) -> Array:
        """Return the real result.

        ``block`` is the output of the FFT, from ``first`` on in a spectrum of real numbers. It is
        overwritten, and the result is a view of it.
        """
        if self._type == 3:
            block *= block.dtype.type(float(self.period) ** (1 + self.power))
            return block
        k = _range(block, start, axis)
        ortho = math.sqrt(0.5) if self.norm == "ortho" else 1.0
        factors = self._ends(self._phases(k, block.dtype), start[axis], ortho)
        factors *= 2 * float(self.period) ** self.power
        block *= aligned(factors.astype(block.dtype, copy=False), axis, block.ndim)
        return block.real

    def _phases(self, k: Array, dtype: Any) -> Array:
        """Return the factors of the spectrum's elements, in at least double precision."""
        a, b = SHIFTS[self.kind]
        phases = roots_of_unity(a * (2 * k + b), 4 * self.period, -1, _complex(dtype))
        return 1j * phases if self.kind.startswith("dst") else phases

    def _ends(self, factors: Array, first: int, weight: float) -> Array:
        for end in ENDS.get(self.kind, ()):
            at = end % self.n - first
            if 0 <= at < len(factors):
                factors[at] *= weight
        return factors


def _complex(dtype: Any) -> Any:
    return np.result_type(dtype, np.complex64)


def _range(block: Array, start: Start, axis: int) -> Array:
    return np.arange(start[axis], start[axis] + block.shape[axis], dtype=np.int64, like=block)
