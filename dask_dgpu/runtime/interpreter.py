"""A guard against a deadlock in CPython before 3.11.12 that freezes a whole process."""

from __future__ import annotations

import gc
import sys
import threading
from types import FrameType

AFFECTED = (3, 11) <= sys.version_info < (3, 11, 12)
"""Whether this interpreter has the deadlock; 3.12 collects garbage only between bytecodes."""

_current_frames = sys._current_frames
_lock = threading.RLock()


def guard_current_frames() -> None:
    """Have ``sys._current_frames`` run without garbage collection, as CPython 3.11.12 does.

    Dask's profiler calls it every 10 ms. It allocates objects with the interpreter's list of
    threads locked. If that starts a collection which releases the GIL, the next thread to start
    or to end takes the GIL and waits for the list: nothing in the process ever runs again
    (https://github.com/python/cpython/issues/106883). Gangs start a thread for each transfer.
    """
    if AFFECTED:
        sys._current_frames = _frames_without_collection


def _frames_without_collection() -> dict[int, FrameType]:
    with _lock:
        enabled = gc.isenabled()
        gc.disable()
        try:
            return _current_frames()
        finally:
            if enabled:
                gc.enable()
