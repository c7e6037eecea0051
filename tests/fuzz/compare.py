"""Whether two ways to compute a value agree."""

from __future__ import annotations

from typing import Any

import numpy as np


def difference(actual: Any, expected: Any, error: float) -> str | None:
    """Say how two arrays differ by more than an error, if they do.

    A complex number that is not finite is only compared to be so: which of its parts is NaN is
    not defined where several are added up.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        return f"shape {actual.shape}, not {expected.shape}"
    if actual.dtype.kind in "biu" and expected.dtype.kind in "biu":
        return _first(actual, expected, actual != expected)
    fine = np.isfinite(actual) & np.isfinite(expected)
    with np.errstate(all="ignore"):
        apart = abs(np.where(fine, actual, 0) - np.where(fine, expected, 0)) > error
    wrong = apart | (np.isfinite(actual) != np.isfinite(expected))
    if actual.dtype.kind != "c" and expected.dtype.kind != "c":
        same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
        wrong |= ~fine & ~same
    return _first(actual, expected, wrong, error)


def _first(actual: Any, expected: Any, wrong: Any, error: float = 0.0) -> str | None:
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.ndim else ()
    return (
        f"{int(wrong.sum())} of {wrong.size} elements differ by more than {error:.3g}, "
        f"first {actual[at]} instead of {expected[at]} at {at}"
    )
