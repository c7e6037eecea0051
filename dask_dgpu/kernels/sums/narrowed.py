"""Conversion to a narrower dtype with one rounding, and to float64 with none.

Libraries round twice, and CuPy flushes subnormal numbers to zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graph_opt.model.layout import BFLOAT16, dtype_named

Array = Any

LOST = 41
"""Bits of a double to drop before the conversion to bfloat16: 12 of 53 digits stay.

bfloat16 has 8, and two more make a second rounding harmless. Single precision represents 12
digits of all numbers from half of the smallest bfloat16, ``2**-134``, on.
"""


def narrowed(values: Array, dtype: str) -> Array:
    """Convert NumPy or CuPy numbers to a dtype; round each once, to nearest and ties to even.

    ml_dtypes converts double to bfloat16 through single precision, which rounds twice. Rounding to
    odd first makes the single precision exact ([1]_). Integers beyond 2**53 become doubles first.

    References
    ----------
    .. [1] S. Boldo and G. Melquiond, "Emulation of a FMA and correctly rounded sums: proved
       algorithms using rounding to odd", IEEE Transactions on Computers 57 (2008).
    """
    if dtype == "float64":
        return widened(values)
    if _on_device(values) and dtype == "float32":
        from dask_dgpu.kernels.sums.narrowed_cuda import to_single

        return to_single(values)
    if dtype != BFLOAT16:
        return values.astype(dtype)
    bits = widened(values).view(np.int64)
    lost = bits & ((1 << LOST) - 1)
    odd = (bits - lost) | ((lost != 0).astype(np.int64) << LOST)
    if _on_device(values):
        from dask_dgpu.kernels.sums.narrowed_cuda import to_bfloat16

        return to_bfloat16(odd.view(np.float64))
    with np.errstate(over="ignore"):
        return odd.view(np.float64).astype(dtype_named(dtype))


def widened(values: Array) -> Array:
    """Return real NumPy or CuPy numbers as float64; no copy of float64."""
    if _on_device(values):
        from dask_dgpu.kernels.sums.narrowed_cuda import to_double

        return to_double(values)
    return values.astype(np.float64, copy=False)


def _on_device(values: Array) -> bool:
    return type(values).__module__.startswith("cupy")
