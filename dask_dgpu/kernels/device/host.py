"""The memory of a host: what its C library caches of it."""

from __future__ import annotations

import ctypes
import os
import platform

KEPT_BYTES = 64 << 20
"""Larger workspaces are freed after each program; glibc may cache as much freed memory."""

FROM_HEAP = 4 << 20
"""Largest allocation from glibc's cache."""

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's ``mallopt``."""


def keep_small_memory() -> bool:
    """Let glibc cache some freed memory if the environment disables that.

    Dask's nanny starts workers with ``MALLOC_TRIM_THRESHOLD_=65536``, so glibc returns all freed
    memory to the system and maps every allocation from 128 KiB on anew. SciPy's transforms allocate
    a workspace for each line: half of their time were page faults. Memory of large arrays is still
    returned.

    Return whether anything changed: only under glibc, with a lower threshold in the environment.
    """
    threshold = os.environ.get("MALLOC_TRIM_THRESHOLD_", "")
    if not _is_glibc() or not threshold.isdigit() or int(threshold) >= KEPT_BYTES:
        return False
    set_option = ctypes.CDLL(None).mallopt
    return bool(set_option(MMAP_THRESHOLD, FROM_HEAP) and set_option(TRIM_THRESHOLD, KEPT_BYTES))


def return_memory() -> None:
    """Have glibc return freed memory that it caches to the system."""
    if _is_glibc():
        ctypes.CDLL(None).malloc_trim(0)


def _is_glibc() -> bool:
    return platform.libc_ver()[0] == "glibc"
