"""The functions that a gang's Dask tasks call.

They run wherever Dask runs them. In a Dask worker they talk to its plugin; with
any other scheduler the gang's ranks are threads of one process, in one task.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

from dask_dgpu.errors import DgpuError
from dask_dgpu.runtime.program import Program
from graph_opt.emit import GANG, STAGE
from graph_opt.layout import Index

if TYPE_CHECKING:
    from dask_dgpu.runtime.worker import GangWorkerPlugin

Array = Any

PLUGIN = "dask-dgpu"


def stage(block: Array, declared: tuple[str, tuple[int, ...], str]) -> Any:
    """Hand a block to the gang, on the worker where it is, without a copy.

    Returns a token that says where the block is; without a worker, the block.
    """
    dtype, shape, container = declared
    block = _conforming(block, dtype, shape, container)
    here = _worker_plugin()
    if here is None:
        return block
    plugin, key = here
    return plugin.stage(key, block)


def gang(program: Program, *staged: list[Any]) -> Any:
    """Run a program on all ranks; return a handle from which ``out`` takes blocks."""
    here = _worker_plugin()
    if here is None:
        from dask_dgpu.runtime.local import run_here

        return run_here(program, staged)
    plugin, key = here
    return plugin.run_gang(key, program, staged)


def out(handle: Any, index: Index) -> Array:
    """Return one block of a gang's result, on the worker that made it."""
    if isinstance(handle, dict):
        return handle[index]
    here = _worker_plugin(prefix="")
    if here is None:
        raise DgpuError(
            "the result of a gang was read outside of the workers that made it; "
            "compute the array instead of single tasks of its graph"
        )
    return here[0].result(handle, index)


def _worker_plugin(prefix: str | None = None) -> tuple[GangWorkerPlugin, Any] | None:
    """The plugin of the worker that runs this very task, and the task's key.

    A task that itself computes with another scheduler is no reason to use the
    worker around it: its key is not one of ours.
    """
    if "distributed" not in sys.modules:
        return None
    from distributed.utils import thread_state  # type: ignore[attr-defined]
    from distributed.worker import get_worker

    key = getattr(thread_state, "key", None)
    name = key[0] if isinstance(key, tuple) else key
    ours = (STAGE, GANG) if prefix is None else prefix
    if not isinstance(name, str) or not name.startswith(ours):
        return None
    try:
        return cast("GangWorkerPlugin", get_worker().plugins[PLUGIN]), key
    except KeyError:
        raise DgpuError(
            "a worker runs a gang's task but has no dask_dgpu plugin; "
            "call dask_dgpu.enable(client) with the client of this cluster"
        ) from None


def _conforming(block: Array, dtype: str, shape: tuple[int, ...], container: str) -> Array:
    """Return the block as what the graph declared it to be, or say what it is instead."""
    kind = f"{type(block).__module__.split('.')[0]}.{type(block).__name__}"
    if kind != container:
        arraylike = hasattr(block, "__array__") or isinstance(block, list | tuple)
        if container != "numpy.ndarray" or not arraylike:
            raise TypeError(f"a block is declared as {container} but is {kind}")
        import numpy as np

        if isinstance(block, np.ma.MaskedArray):
            raise TypeError("a block is declared as numpy.ndarray but is a masked array")
        block = np.asarray(block)
    if block.shape != shape:
        raise ValueError(f"a block is declared with shape {shape} but has {block.shape}")
    if block.dtype != dtype:
        try:
            return block.astype(dtype, casting="same_kind")
        except TypeError:
            raise TypeError(f"a block is declared as {dtype} but is {block.dtype}") from None
    return block
