"""Temporary host arrays, in memory or in a file without a name."""

from __future__ import annotations

import os
import shutil
import tempfile
from math import prod
from typing import Any

import dask
import numpy as np
import psutil
from dask.utils import format_bytes

from dask_dgpu.batches.rules import Shape
from dask_dgpu.errors import DgpuError

SHARE = 0.5
"""Most of the available memory that an array may take."""


def temporary(shape: Shape, dtype: np.dtype[Any]) -> Any:
    """Return an array of any content, in a file if it would take most of the memory.

    The file has no name, so nothing is left of it even if this process is killed.
    """
    nbytes = prod(shape) * dtype.itemsize
    if nbytes <= SHARE * psutil.virtual_memory().available:
        return np.empty(shape, dtype)
    folder = dask.config.get("temporary-directory", None) or tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if nbytes > free:
        raise DgpuError(
            f"expected {format_bytes(nbytes)} for a result between passes in Dask's "
            f"temporary-directory {folder}, got {format_bytes(free)} of free space"
        )
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, nbytes)  # a full disk would kill this process later
        return np.memmap(file, dtype, "r+", shape=shape)
