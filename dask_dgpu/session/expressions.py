"""Patches by which arrays of dask_array are computed as those of Dask."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import Any

import dask.array as da
from dask.array.backends import array_creation_dispatch

from dask_dgpu.array import fft
from dask_dgpu.array.fft.call import DASKS_OWN
from dask_dgpu.kinds import as_dasks, as_expressions
from dask_dgpu.optimizer import reading

logger = logging.getLogger(__name__)

Function = Callable[..., Any]

COMPUTING = ("dask.base", "distributed.client")
"""Modules that look up ``collections_to_expr``: what becomes of collections that are computed."""

MULTIPLYING = ("dask_array", "dask_array.linalg", "dask_array.linalg._tensordot")
"""Modules that look up ``matmul`` and ``tensordot``."""

CREATING = ("ones", "zeros", "empty", "full", "arange", "eye", "linspace")
"""Functions of dask_array that know no ``array.backend``."""


class Awaited(MetaPathFinder):
    """Calls a function as soon as dask_array is imported, which changes defaults of Dask."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find dask_array, once."""
        if name != "dask_array":
            return None
        self.close()
        spec: Any = find_spec(name)
        if spec is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                self._then()

            spec.loader.exec_module = exec_module
        return spec

    def close(self) -> None:
        """Await nothing any more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def expression_patches() -> list[tuple[Any, str, Function]]:
    """Return owner, name and replacement of each patched function; dask_array is imported."""
    try:
        import dask_array
        from dask_array._collection import Array

        from graph_opt.expressions import products, reader  # noqa: F401
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
        *((dask_array, name, _creating(name, getattr(dask_array, name))) for name in CREATING),
        *(
            (owner, name, getattr(products, name))
            for owner in map(import_module, MULTIPLYING)
            for name in ("matmul", "tensordot")
        ),
    ]


def _creating(name: str, original: Function) -> Function:
    """Wrap a creation function: on other backends than NumPy's, Dask's creates the blocks."""

    @wraps(original)
    def create(*args: Any, **kwargs: Any) -> Any:
        if array_creation_dispatch.backend == "numpy":
            return original(*args, **kwargs)
        return as_expressions(getattr(da, name)(*args, **kwargs))

    return create
