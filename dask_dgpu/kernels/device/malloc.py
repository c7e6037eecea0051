"""The memory allocator of the C library, for kernels that often allocate small workspaces."""

from __future__ import annotations

import ctypes
import os
import platform

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's ``mallopt``."""

KEPT = 64 << 20
"""Bytes of freed memory that glibc may cache."""

FROM_HEAP = 4 << 20
"""Largest allocation from the cache."""


def keep_small_memory() -> bool:
    """Let glibc cache some freed memory if the environment disables that.

    Dask's nanny starts workers with ``MALLOC_TRIM_THRESHOLD_=65536``, so glibc returns all freed
    memory to the system and maps every allocation from 128 KiB on anew. SciPy's transforms allocate
    a workspace for each line: half of their time were page faults. Memory of large arrays is still
    returned.

    Returns
    -------
    bool
        Whether anything changed: only under glibc, with a lower threshold in the environment.
    """
    threshold = os.environ.get("MALLOC_TRIM_THRESHOLD_", "")
    if platform.libc_ver()[0] != "glibc" or not threshold.isdigit() or int(threshold) >= KEPT:
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(MMAP_THRESHOLD, FROM_HEAP) and libc.mallopt(TRIM_THRESHOLD, KEPT))
