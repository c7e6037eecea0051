"""A gang whose blocks are not what the graph declares: its task has Dask run Dask's own tasks."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import cloudpickle

from dask_dgpu.runtime.background import in_background
from dask_dgpu.runtime.program import Key, Program
from graph_opt.dask_graph.internals import Task
from graph_opt.dask_graph.plain import Plain

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState

    from dask_dgpu.runtime.scheduler.run import Run


def plain_of(task: TaskState | None) -> Plain | None:
    """Return what Dask would do instead of a gang, which only its task on the scheduler knows.

    It is not known if the graph was optimized elsewhere, as that of an array in a Delayed.
    """
    spec = None if task is None else task.run_spec
    program = spec.args[0] if isinstance(spec, Task) and spec.args else None
    return program.plain if isinstance(program, Program) else None


async def answer_of(run: Run, scheduler: Scheduler) -> dict[str, Any]:
    """Wait for the end of a run; return what the worker of the gang's task is told."""
    await asyncio.wait([run.outcome])
    answer = run.outcome.result()
    if "plain" not in answer:
        return answer
    task = scheduler.tasks.get(run.key)
    workers = sorted(task.worker_restrictions or ()) if task is not None else []
    plain = await in_background(partial(cloudpickle.dumps, answer["plain"]))
    return answer | {"plain": plain, "workers": workers}


def compute_plainly(answer: dict[str, Any]) -> dict[Key, Any]:
    """Have Dask make the blocks that are wanted, and return them, by name and place.

    The tasks have names of their own, for ``out`` tasks have Dask's. They read the inputs
    under Dask's names; Dask makes again what it has dropped since they were staged.
    """
    from distributed import worker_client

    plain: Plain = cloudpickle.loads(answer["plain"])
    tasks, keys = plain.tasks(f"plain-{answer['run_id']}-")
    with worker_client() as client:
        blocks = client.get(tasks, keys, workers=answer["workers"] or None)
    return dict(zip(plain.wanted, blocks, strict=True))
