"""The C library's memory, for kernels that allocate small workspaces all the time."""

from __future__ import annotations

import ctypes
import os
import platform

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's ``mallopt``."""

KEPT = 64 << 20
"""Bytes of freed memory that glibc may keep for the next allocation."""

FROM_HEAP = 4 << 20
"""Allocations of up to so many bytes are made from what is kept."""


def keep_small_memory() -> bool:
    """Have glibc keep some freed memory where the environment told it to keep nearly none.

    Dask's nanny starts workers with ``MALLOC_TRIM_THRESHOLD_=65536``, by which glibc gives
    back to the system whatever is freed and fetches everything of 128 KiB anew. SciPy's
    transforms allocate a workspace for each line: half of their time went into page
    faults. The memory that large arrays had is given back as before.

    Returns
    -------
    bool
        Whether anything changed: only under glibc, and where the threshold is set lower.
    """
    threshold = os.environ.get("MALLOC_TRIM_THRESHOLD_", "")
    if platform.libc_ver()[0] != "glibc" or not threshold.isdigit() or int(threshold) >= KEPT:
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(MMAP_THRESHOLD, FROM_HEAP) and libc.mallopt(TRIM_THRESHOLD, KEPT))
