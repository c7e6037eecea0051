"""Blocks of gangs in a worker's own memory: inputs that are there, and results of ``out`` tasks."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dask.utils import typename
from distributed.worker_state_machine import FreeKeysEvent

if TYPE_CHECKING:
    from distributed.worker import Worker

Array = Any
Key = Any
Facts = tuple[Key, tuple[int, bytes, str]]
"""What Dask's scheduler knows of a result: its key; its bytes, pickled type and type's name."""


def resident(data: Mapping[Key, Array], key: Key) -> Array:
    """Return a block of a worker's data.

    Raises
    ------
    KeyError
        If it is not there, or spilled: reading a file would block the event loop.
    """
    parts = [getattr(data, name, None) for name in ("device", "fast")]  # of data that may spill
    for part in [part for part in parts if part is not None] or [data]:
        if key in part:
            return part[key]
    raise KeyError(key)


def store(worker: Worker, results: Mapping[Key, Any]) -> list[Facts]:
    """Store results as those of tasks on this worker; return the stored ones.

    A task that the worker knows otherwise runs as usual. Call this on the event loop.
    """
    known = worker.state.tasks
    fresh = {key: result for key, result in results.items() if _is_free(known.get(key))}
    nbytes = worker.update_data(fresh)["nbytes"]
    return [
        (key, (nbytes[key], pickle.dumps(type(result)), typename(type(result))))
        for key, result in fresh.items()
    ]


def _is_free(task: Any) -> bool:
    return task is None or task.state in ("released", "forgotten")


def withdraw(worker: Worker, keys: Iterable[Key], stimulus_id: str) -> None:
    """Free results that the scheduler will not know of."""
    worker.handle_stimulus(FreeKeysEvent(keys=list(keys), stimulus_id=stimulus_id))
