"""The functions of expressions, by name: what each is in NumPy.

The names are those of NumPy's own namespace, so that ``getattr(module, name)`` finds a function in
CuPy too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Function(NamedTuple):
    """An elementwise function: NumPy's callable, its number of array arguments, if it is a ufunc.

    Ufuncs take ``out=``; of the others, ``clip`` and ``round`` do.
    """

    call: Callable[..., Any]
    arity: int
    ufunc: bool


def _ufuncs() -> dict[str, Function]:
    """Return the ufuncs with one result, by their own names: ``absolute``, not ``abs``."""
    found = (each for each in vars(np).values() if isinstance(each, np.ufunc))
    return {
        each.__name__: Function(each, each.nin, True)
        for each in sorted(found, key=lambda each: each.__name__)
        if each.nout == 1 and each.signature is None
    }


FUNCTIONS: dict[str, Function] = {
    **_ufuncs(),
    "where": Function(np.where, 3, False),
    "clip": Function(np.clip, 3, False),
    "round": Function(np.round, 1, False),
    "real": Function(np.real, 1, False),
    "imag": Function(np.imag, 1, False),
    "angle": Function(np.angle, 1, False),
    "nan_to_num": Function(np.nan_to_num, 1, False),
    "isclose": Function(np.isclose, 2, False),
    "sinc": Function(np.sinc, 1, False),
    "i0": Function(np.i0, 1, False),
}
"""Of an ``Apply``. Bounds of ``clip`` may be None."""
