"""Cosine and sine transforms of one block, by one FFT each, for NumPy and CuPy alike.

All types are sums over cosines or sines of ``pi (m + a) (k + b) / M``, where ``a`` and ``b``
are 0, 1/2 or 1: real parts of ::

    y[k] = sum_m  x[m] exp(-pi i m b / M)  exp(-2 pi i m k / 2 M)  exp(-pi i a (k + b) / M)
           `------------ before ---------' `--- FFT, of 2 M ----'  `------- after -------'

An integer ``b`` is a position in the spectrum of real numbers (types I and II). Type III is the
transpose of type II, and its FFT is one to real numbers. SciPy has transforms of all types, CuPy
of two: on CuPy arrays these run instead.

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

from dask_dgpu.kernels.fft.factors import Start, aligned, roots_of_unity, spans

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
WORKSPACE = 64 * 2**20
"""Approximate bytes of one slice's FFT."""


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
        logical = {"backward": 0.0, "ortho": -0.5, "forward": -1.0}[self.norm]
        if self._type == 3:
            block *= block.dtype.type(float(self.period) ** (1 + logical))
            return block
        k = _range(block, start, axis)
        ortho = math.sqrt(0.5) if self.norm == "ortho" else 1.0
        factors = self._ends(self._phases(k, block.dtype), start[axis], ortho)
        factors *= 2 * float(self.period) ** logical
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


def transform(block: Array, kind: str, n: int, axis: int, norm: str, dtype: str, fft: Any) -> Array:
    """Transform a block along an axis, as a new array of a dtype.

    The block is cropped, or padded with zeros. The module ``fft`` has ``rfft``, ``irfft`` and
    ``fft`` for such arrays. Slices limit the workspace, since FFTs have twice the length. The parts
    of complex numbers are two lines of real ones.
    """
    recipe = Recipe(kind, n, norm)
    block = block[(slice(None),) * axis + (slice(0, n),)].astype(dtype, order="C", copy=False)
    shape = (*block.shape[:axis], n, *block.shape[axis + 1 :])
    result = np.empty_like(block, shape=shape, order="C")
    source, target = (_real(block), _real(result)) if result.dtype.kind == "c" else (block, result)
    others = [k for k in range(source.ndim) if k != axis]
    if not others:
        target[...] = _sliced(source, recipe, axis, fft)
        return result
    other = max(others, key=lambda k: source.shape[k])
    line = 4 * target.nbytes // target.shape[other]
    for low, high in spans(target.shape[other], max(1, WORKSPACE // line)):
        part = (slice(None),) * other + (slice(low, high),)
        target[part] = _sliced(source[part], recipe, axis, fft)
    return result


def _sliced(x: Array, recipe: Recipe, axis: int, fft: Any) -> Array:
    start = (0,) * x.ndim
    x = recipe.before(x, start, axis)
    wanted = slice(recipe.first, recipe.first + recipe.n)
    if recipe.fft == "irfft":
        shape = (*x.shape[:axis], recipe.first + x.shape[axis], *x.shape[axis + 1 :])
        spectrum = np.zeros_like(x, shape=shape)
        spectrum[(slice(None),) * axis + (wanted,)] = x
        x, wanted = spectrum, slice(0, recipe.n)
    y = getattr(fft, recipe.fft)(x, recipe.period, axis)
    return recipe.after(y[(slice(None),) * axis + (wanted,)], start, axis)


def _real(array: Array) -> Array:
    """Return a view with a last axis of real and imaginary parts."""
    return array.view(array.real.dtype).reshape((*array.shape, 2))


def _complex(dtype: Any) -> Any:
    return np.result_type(dtype, np.complex64)


def _range(block: Array, start: Start, axis: int) -> Array:
    return np.arange(start[axis], start[axis] + block.shape[axis], dtype=np.int64, like=block)
