"""Block functions of Dask's own, as a program carries them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any, cast

import cloudpickle
from dask import _task_spec as dask_task
from dask.highlevelgraph import Layer

from graph_opt.layout import Index

Array = Any
Task = Callable[[Mapping[Any, Array]], Array]


class Blockworks:
    """Dask's layers whose tasks make blocks, by the name of the array that each makes.

    Their functions may be whatever a user wrote. The scheduler hands programs on and has no
    use for them, so they are unpickled only where they are run; all at once, so that what
    many steps share travels once.

    Parameters
    ----------
    layers : mapping of str to Layer, optional
        Tasks are called with a mapping from keys to the blocks that they need.
    pickled : bytes, optional
        The same, pickled.
    """

    def __init__(self, layers: Mapping[str, Layer] | None = None, pickled: bytes = b"") -> None:
        if layers is not None:
            self._layers = {name: _bare(layer) for name, layer in layers.items()}
        self._pickled = pickled

    @cached_property
    def _layers(self) -> dict[str, Layer]:
        layers: dict[str, Layer] = cloudpickle.loads(self._pickled)
        return layers

    def tasks(self, name: str, blocks: Collection[Index]) -> dict[Index, Task]:
        """Return the tasks that make these blocks."""
        if not blocks:
            return {}
        layer, _ = self._layers[name].cull({(name, *index) for index in blocks}, ())
        return {index: _quick(layer[name, *index]) for index in blocks}

    def __reduce__(self) -> Any:
        if not self._pickled:
            self._pickled = cloudpickle.dumps(self._layers)
        return type(self), (None, self._pickled)


def _quick(task: Any) -> Task:
    """Return a task that does the same, and does not order the tasks that are fused into it."""
    if isinstance(task, dask_task.Task) and task.has_subgraph():
        return cast(Task, dask_task.Task(task.key, run_fused, *task.args))
    return cast(Task, task)


def run_fused(tasks: Mapping[Any, Any], result: Any, names: Sequence[Any], *blocks: Array) -> Array:
    """Run fused tasks as they are needed; let go of what each has made after its last use.

    Dask's own way orders them first, as a graph of any size, which takes longer than to run them.

    Parameters
    ----------
    tasks : mapping
        The tasks, by their keys.
    result : key
        Of the task whose value is returned.
    names : sequence of keys
        What the tasks call ``blocks``.
    *blocks : array
        What comes from outside.
    """
    known = dict(zip(names, blocks, strict=True))
    uses = Counter(need for task in tasks.values() for need in task.dependencies)
    waiting = [result]
    while waiting:
        needs = () if waiting[-1] in known else tasks[waiting[-1]].dependencies
        missing = [need for need in needs if need not in known]
        if missing:
            waiting += missing
            continue
        key = waiting.pop()
        if key in known:
            continue
        known[key] = tasks[key]({need: known[need] for need in needs})
        for need in needs:
            uses[need] -= 1
            if not uses[need]:
                del known[need]
    return known[result]


def _bare(layer: Layer) -> Layer:
    """Return a layer without what only a client needs of it, nor tasks that it can make again."""
    bare = copy(layer)
    bare.annotations = bare.collection_annotations = None
    bare.__dict__.pop("_cached_dict", None)
    return bare
