"""Workers on CPUs that keep freed memory for their next arrays, as a pool does on a GPU.

Dask's nanny has glibc return freed memory at once, so each array is new memory. The system has to
clear it, page by page, which takes longer than most of NumPy's functions.
"""

from __future__ import annotations

import os
from typing import Any

import dask
from distributed import Nanny
from distributed.core import Status

FRACTION = 1 / 8
"""Freed memory that a worker keeps, as a fraction of its memory limit."""

THRESHOLD = "MALLOC_TRIM_THRESHOLD_"
DEFAULT = "65536"
"""Its value in Dask's configuration."""


class KeepingNanny(Nanny):
    """A nanny whose worker keeps freed memory, unless users have chosen how much.

    The worker returns the memory when it runs short
    (:mod:`dask_dgpu.runtime.worker.plugin`). Without a memory limit it keeps none.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._kept = self._variables()
        self._before = {name: os.environ.get(name) for name in self._kept}
        self.pre_spawn_env |= self._kept
        self.env |= self._kept

    def _variables(self) -> dict[str, str]:
        limit = self.memory_manager.memory_limit
        # a forked process has the allocator of its parent
        if not limit or dask.config.get("distributed.worker.multiprocessing-method") != "spawn":
            return {}
        own = variables(limit)
        chosen = self.pre_spawn_env.get(THRESHOLD) not in (DEFAULT, own[THRESHOLD])
        return {} if chosen else own

    async def instantiate(self) -> Status:
        """Start the worker's process; Dask leaves its variables in this process, this does not."""
        try:
            return await super().instantiate()
        finally:
            for name, value in self._kept.items():
                before = self._before[name]
                if os.environ.get(name) != value:
                    continue  # another nanny has restored it
                if before is None or before == value:  # another nanny has set it
                    del os.environ[name]
                else:
                    os.environ[name] = before


def variables(limit: int) -> dict[str, str]:
    """Return the environment in which glibc keeps a fraction of ``limit`` bytes.

    Arrays of up to half of it come from what is kept. By default each thread has a heap of its
    own, of at most 64 MiB, and maps larger arrays: the one heap has no such limit.
    """
    kept = int(limit * FRACTION)
    return {
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": str(kept // 2),
        THRESHOLD: str(kept),
    }
