"""Conversion to a narrower dtype with one rounding, and to float64 with none.

Libraries round twice, and CuPy takes subnormal numbers for zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graph_opt.model.dtype import BFLOAT16, dtype_named

Array = Any

LOST = 41
"""Bits of a double that are not kept before it becomes bfloat16: 12 digits stay of 53.

Eight are wanted, and two more make a second rounding harmless. Single precision holds 12 of
whatever is not less than half of the smallest bfloat16, ``2**-134``.
"""


def narrowed(values: Array, dtype: str) -> Array:
    """Return numbers in another dtype, each rounded once, to nearest and ties to even.

    Parameters
    ----------
    values : numpy.ndarray or cupy.ndarray
        Of any real dtype; integers beyond 2**53 become doubles first.
    dtype : str
        What they become. A double becomes bfloat16 by way of single precision in ml_dtypes,
        which rounds twice; here it is rounded to odd before, so that single precision is
        exact and a tie is a tie.

    References
    ----------
    .. [1] S. Boldo and G. Melquiond, "Emulation of a FMA and correctly rounded sums: proved
       algorithms using rounding to odd", IEEE Transactions on Computers 57 (2008).
    """
    if dtype == "float64":
        return widened(values)
    on_device = _on_device(values)
    if dtype != BFLOAT16:
        return _single(values) if on_device and dtype == "float32" else values.astype(dtype)
    bits = widened(values).view(np.int64)
    lost = bits & ((1 << LOST) - 1)
    odd = (bits - lost) | ((lost != 0).astype(np.int64) << LOST)
    if on_device:
        return _single(odd.view(np.float64), dtype)
    with np.errstate(over="ignore"):
        return odd.view(np.float64).astype(dtype_named(dtype))


def widened(values: Array) -> Array:
    """Return real numbers of NumPy or CuPy as float64; a copy if they are of another dtype."""
    if _on_device(values):
        from dask_dgpu.kernels.sums.narrowed_cuda import to_double

        return to_double(values)
    return values.astype(np.float64, copy=False)


def _on_device(values: Array) -> bool:
    return type(values).__module__.startswith("cupy")


def _single(values: Array, dtype: str = "float32") -> Array:
    from dask_dgpu.kernels.sums.narrowed_cuda import to_bfloat16, to_single

    single = to_single(values)
    return single if dtype == "float32" else to_bfloat16(single)
