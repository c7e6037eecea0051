"""The functions of a gang's Dask tasks.

In a Dask worker they call its plugin. With any other scheduler the gang's ranks are threads of one
process, in one task.
"""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from dask_dgpu.errors import DgpuError, UndeclaredError
from dask_dgpu.operations.value import conforming
from dask_dgpu.runtime.program import Program
from graph_opt.dask_graph.emit import GANG, STAGE, Key

if TYPE_CHECKING:
    from dask_dgpu.runtime.worker.plugin import GangWorkerPlugin

Array = Any

PLUGIN = "dask-dgpu"


def stage(block: Array, declared: tuple[str, str, tuple[int, ...], str] | None) -> Any:
    """Pass a block to the gang on this worker, without a copy.

    Inputs of collectives must match their declaration in the graph; inputs of Dask's own functions
    may be anything. Returns a token with the block's worker; without a worker, the block.
    """
    if declared is not None:
        with suppress(UndeclaredError):  # the gang handles it
            block = conforming(block, *declared)
    here = _worker_plugin()
    if here is None:
        return block
    plugin, key = here
    return plugin.stage(key, block)


def gang(program: Program, *staged: list[Any]) -> Any:
    """Run a program on all ranks; return a handle for ``out``."""
    here = _worker_plugin()
    if here is None:
        from dask_dgpu.runtime.local import run_here

        try:
            return run_here(program, staged)
        except UndeclaredError as error:
            if program.plain is None:
                raise
            warnings.warn(f"dask_dgpu left a gang to Dask: {error}", stacklevel=2)
        return program.plain.blocks(program.named(staged))
    plugin, key = here
    return plugin.run_gang(key, program, staged)


def out(handle: Any, block: Key) -> Array:
    """Return one block of a gang's results, on the worker that computed it."""
    if isinstance(handle, dict):
        return handle[block]
    here = _worker_plugin(prefix="")
    if here is None:
        raise DgpuError(
            "the result of a gang was read outside of the workers that computed it; "
            "compute the array instead of single tasks of its graph"
        )
    plugin, key = here
    return plugin.result(handle, block, key)


def _worker_plugin(prefix: str | None = None) -> tuple[GangWorkerPlugin, Any] | None:
    """Return the plugin of the worker that runs this task, and the task's key.

    ``None`` within a task that itself computes with another scheduler: its key is not ours.
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
