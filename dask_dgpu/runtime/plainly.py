"""Fallback to Dask's own tasks, for gangs whose blocks differ from the graph's declaration."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import cloudpickle

from dask_dgpu.runtime.background import in_background
from dask_dgpu.runtime.program import Key, Program
from graph_opt.dask_graph.emit import Plain
from graph_opt.dask_graph.internals import Task

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState

    from dask_dgpu.runtime.scheduler.run import Run


def plain_of(task: TaskState | None) -> Plain | None:
    """Return Dask's own tasks for a gang, which the gang's task on the scheduler holds.

    They are unknown if the graph was optimized elsewhere, as for an array in a Delayed.
    """
    spec = None if task is None else task.run_spec
    program = spec.args[0] if isinstance(spec, Task) and spec.args else None
    return program.plain if isinstance(program, Program) else None


async def answer_of(run: Run, scheduler: Scheduler) -> dict[str, Any]:
    """Wait for the end of a run; return the answer to the worker of the gang's task."""
    await asyncio.wait([run.outcome])
    answer = run.outcome.result()
    if "plain" not in answer:
        return answer
    task = scheduler.tasks.get(run.key)
    workers = sorted(task.worker_restrictions or ()) if task is not None else []
    plain = await in_background(partial(cloudpickle.dumps, answer["plain"]))
    return answer | {"plain": plain, "workers": workers}


def compute_plainly(answer: dict[str, Any]) -> dict[Key, Any]:
    """Let Dask compute the wanted blocks; return them by name and place.

    The tasks have new names, because ``out`` tasks have Dask's. They read the inputs under Dask's
    names; Dask recomputes inputs that it has dropped since they were staged.
    """
    from distributed import worker_client

    plain: Plain = cloudpickle.loads(answer["plain"])
    tasks, keys = plain.tasks(f"plain-{answer['run_id']}-")
    with worker_client() as client:
        blocks = client.get(tasks, keys, workers=answer["workers"] or None)
    return dict(zip(plain.wanted, blocks, strict=True))
