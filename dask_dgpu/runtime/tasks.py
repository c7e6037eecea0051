"""The functions of a gang's Dask tasks.

In a Dask worker they call its plugin. With any other scheduler, or on a cluster that dask_dgpu is
not enabled for, the gang's ranks are threads of one process, in one task.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.errors import DgpuError, UndeclaredError
from dask_dgpu.kernels.device import Device, HostDevice
from dask_dgpu.kernels.device.memory import lacks_memory
from dask_dgpu.operations.operation import Blocks, conforming
from dask_dgpu.runtime.again import with_less
from dask_dgpu.runtime.execute import Observer, Span, execute
from dask_dgpu.runtime.plans import Owners, Plans, plans
from dask_dgpu.runtime.prepared import prepared
from dask_dgpu.runtime.program import Launch, Program, opened
from dask_dgpu.runtime.recording import Recording
from graph_opt.dask_graph.internals import finalize
from graph_opt.model.layout import CUPY, dealt
from graph_opt.model.names import GANG, STAGE, label

if TYPE_CHECKING:
    from dask_dgpu.runtime.worker.plugin import GangWorkerPlugin

Array = Any
Key = Any

PLUGIN = "dask-dgpu"

ENABLE = "call dask_dgpu.enable(client) with the client of this cluster"
"""What to do about workers without the plugin."""

details: deque[tuple[str, Any]] = deque(maxlen=64)
"""The last details of operations in this process, with the names of the operations' outputs."""

recordings: list[Recording] = []
"""Where gangs in this process are recorded, while profilers run."""


def stage(
    block: Array, declared: tuple[str, str, tuple[int, ...], str] | None, turn: None = None
) -> Any:
    """Pass a block to the gang on this worker, without a copy.

    Inputs of collectives must match their declaration in the graph; inputs of Dask's own functions
    may be anything. In a part of a collective, ``turn`` is the result of the task that waits for
    the part before. Returns a token with the block's worker; without a worker, the block.
    """
    if declared is not None:
        with suppress(UndeclaredError):  # the gang handles it
            block = conforming(block, *declared)
    here = _worker_plugin()
    if here is None:
        return block
    plugin, key = here
    return plugin.stage(key, block)


def gang(launch: Launch, *staged: list[Any]) -> Any:
    """Run a program on all ranks; return a handle for ``out``."""
    here = _worker_plugin()
    if here is None:
        if any(map(_is_token, chain.from_iterable(staged))):
            raise DgpuError(f"some workers of this cluster have no dask_dgpu plugin; {ENABLE}")
        try:
            return run_here(launch, staged)
        except UndeclaredError as error:
            plain = launch.fallback
            if plain is None:
                raise
            warnings.warn(f"dask_dgpu left a gang to Dask: {error}", stacklevel=2)
        arrays = zip(launch.names, launch.program.places, staged, strict=False)
        return plain.blocks(
            {
                (name, *index): block
                for name, places, blocks in arrays
                for index, block in zip(places, blocks, strict=True)
            }
        )
    plugin, key = here
    return plugin.run_gang(key, launch, staged)


def out(handle: Any, block: Key, number: bool = False) -> Array:
    """Return one block of a gang's results, on the worker that computed it; of a number a copy."""
    if number:
        return finalize([out(handle, block)])
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
    from distributed.worker import get_worker, warn

    key = getattr(thread_state, "key", None)
    name = key[0] if isinstance(key, tuple) else key
    ours = (STAGE, GANG) if prefix is None else prefix
    if not isinstance(name, str) or not name.startswith(ours):
        return None
    plugin = get_worker().plugins.get(PLUGIN)
    if plugin is None:
        if name.startswith(GANG):
            warn(f"a worker without the dask_dgpu plugin computes a gang alone; {ENABLE}")
        return None
    return cast("GangWorkerPlugin", plugin), key


def _is_token(staged: Any) -> bool:
    """Whether a block is in the memory of a worker: its key and the worker's address."""
    return isinstance(staged, tuple) and len(staged) == 2 and isinstance(staged[1], str)


class Naming(Observer):
    """An observer that notes step and rank in errors, and keeps spans, and the details of rank 0.

    Somebody may have the run ``profiled``.
    """

    def __init__(self, rank: int, profiled: bool = False) -> None:
        self.rank = rank
        self.profiled = profiled
        self.spans: list[Span] = []
        self.details: dict[str, Any] = {}

    def detail(self, output: str, detail: Any) -> None:
        """Keep a detail."""
        if self.rank == 0:
            details.append((output, detail))
            self.details[output] = detail

    @contextmanager
    def step(self, name: str, action: str) -> Iterator[Span]:
        """Add the step and the rank to an error; yield the span of the step."""
        with super().step(name, action) as span:
            self.spans.append(span)
            try:
                yield span
            except Exception as error:
                error.add_note(f"in {label(name)}, on rank {self.rank}")
                raise
            finally:
                span.stop = self.now()


def run_here(launch: Launch, staged: Sequence[list[Array]]) -> dict[Key, Array]:
    """Run a program on its number of local ranks, as threads; return all blocks of its results.

    If it runs out of memory, it runs once more, planned with less.

    Raises
    ------
    OutOfMemoryError
        If it runs out of memory again.
    """
    if launch.tokens:
        launch = replace(launch, program=opened(launch.program.text[0], launch.tokens), tokens=None)
    program, size = launch.program, launch.program.local_ranks
    owners = [dealt(len(places), size) for places in program.places]
    try:
        return _run_planned(launch, plans(program, owners, size), owners, staged)
    except Exception as error:
        if not lacks_memory(error):
            raise
    gc.collect()  # frames of the error may hold arrays
    _device(program).release()
    planned, tried = with_less(program, launch.title, owners, size)
    try:
        return _run_planned(launch, planned, owners, staged)
    except Exception as error:
        if lacks_memory(error):
            raise tried.error(error) from None
        raise


def _run_planned(
    launch: Launch,
    planned: Plans,
    owners: Owners,
    staged: Sequence[list[Array]],
) -> dict[Key, Array]:
    """Run a planned program, and record it if profilers run."""
    program, size = launch.program, launch.program.local_ranks
    blocks: list[Blocks] = [
        dict(zip(places, given, strict=True))
        for places, given in zip(program.places, staged, strict=True)
    ]
    wanted = tuple(recordings)
    observers = [Naming(rank, profiled=bool(wanted)) for rank in range(size)]

    # the caller's context holds NumPy's reaction to overflow, for example
    contexts = [copy_context() for _ in range(size)]

    def rank_program(comm: Comm) -> dict[Key, Array]:
        mine: list[Blocks] = [
            {
                index: block
                for (index, block), owner in zip(values.items(), held, strict=True)
                if owner == comm.rank
            }
            for values, held in zip(blocks, owners, strict=True)
        ]
        device, observer = _device(program), observers[comm.rank]
        todo = prepared(program, planned, comm.rank, device.kind)
        return execute(todo, launch.names, comm, device, mine, observer)

    result: dict[Key, Array] = {}
    for part in run_local(size, lambda comm: contexts[comm.rank].run(rank_program, comm)):
        result.update(part)
    spans = {f"rank {rank.rank}": rank.spans for rank in observers}
    for recording in wanted:
        recording.add_gang(launch, planned.collectives, spans, observers[0].details)
    return result


def _device(program: Program) -> Device:
    if any(value.container == CUPY for value in program.values):
        from dask_dgpu.kernels.device.cuda import CudaDevice

        return CudaDevice()
    return HostDevice()
