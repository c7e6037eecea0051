"""Patches by which arrays of dask_array are computed as those of Dask."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from dask_dgpu.array import fft
from dask_dgpu.array.fft.call import DASKS_OWN
from dask_dgpu.kinds import as_dasks
from dask_dgpu.optimizer import reading

logger = logging.getLogger(__name__)

Function = Callable[..., Any]

COMPUTING = ("dask.base", "distributed.client")
"""Modules that look up ``collections_to_expr``: what becomes of collections that are computed."""


def expression_patches() -> list[tuple[Any, str, Function]]:
    """Return owner, name and replacement of each patched function, if dask_array is installed."""
    if find_spec("dask_array") is None:
        return []
    try:
        from dask_array._collection import Array

        from graph_opt.expressions import reader  # noqa: F401
    except ImportError as error:
        logger.warning("arrays of dask_array run without dask_dgpu, which needs 0.7: %s", error)
        return []
    own_fft = import_module("dask_array.fft")
    return [
        *(
            (owner, "collections_to_expr", reading(owner.collections_to_expr))
            for owner in map(import_module, COMPUTING)
        ),
        (Array, "_pinned", lambda self: self),  # it would be lowered to tasks
        (Array, "compute", lambda self, **kwargs: as_dasks(self).compute(**kwargs)),
        *((own_fft, name, getattr(fft, name)) for name in DASKS_OWN),
    ]
