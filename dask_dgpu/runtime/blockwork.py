"""Block functions of Dask's own, as a program carries them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle

from graph_opt.layout import Index

Array = Any
Task = Callable[[Mapping[Any, Array]], Array]


class Tasks:
    """Tasks that make blocks, by the place of the block.

    They may call whatever a user wrote. The scheduler hands programs on and has no use for
    them, so they are unpickled only where they are run.

    Parameters
    ----------
    tasks : dict of tuple of int to task
        Each is called with a mapping from keys to the blocks that it needs.
    """

    def __init__(self, tasks: dict[Index, Task] | None = None, pickled: bytes = b"") -> None:
        self._tasks = tasks
        self._pickled = pickled

    def load(self) -> dict[Index, Task]:
        """Return the tasks."""
        if self._tasks is None:
            tasks: dict[Index, Task] = cloudpickle.loads(self._pickled)
            self._tasks = tasks
        return self._tasks

    def __reduce__(self) -> Any:
        if not self._pickled:
            self._pickled = cloudpickle.dumps(self._tasks)
        return type(self), (None, self._pickled)
