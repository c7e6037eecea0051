"""The functions of expressions, by name.

The names are those of NumPy's own namespace, so that ``getattr(module, name)`` finds a function in
CuPy too.
"""

from __future__ import annotations

import numpy as np

_UFUNCS = {
    each.__name__: each.nin  # by their own names: ``absolute``, not ``abs``
    for each in vars(np).values()
    if isinstance(each, np.ufunc) and each.nout == 1 and each.signature is None
}

FUNCTIONS: dict[str, int] = {
    **dict(sorted(_UFUNCS.items())),
    **dict.fromkeys(("where", "clip"), 3),
    **dict.fromkeys(("round", "real", "imag", "angle", "nan_to_num", "sinc", "i0"), 1),
    "isclose": 2,
}
"""Of an ``Apply``, with the number of array arguments. Bounds of ``clip`` may be None."""
