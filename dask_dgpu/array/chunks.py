"""Arrays of Dask whose chunks the user cannot choose."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import dask.array as da


@contextmanager
def any_chunks() -> Iterator[None]:
    """Let Dask build an array of many more chunks than its operands have, without a warning.

    An outer product has so many, and its caller cannot choose others.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", da.PerformanceWarning)
        yield
