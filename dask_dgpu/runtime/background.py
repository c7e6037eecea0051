"""Threads that block neither the event loop, nor the end of a process, nor all of it; its end."""

from __future__ import annotations

import asyncio
import atexit
import gc
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

PAUSE = 0.01

AFFECTED = (3, 11) <= sys.version_info < (3, 11, 12)
"""Whether this interpreter has a deadlock that freezes a whole process.

Since 3.12 CPython collects garbage only between bytecodes.
"""

_current_frames = sys._current_frames
_lock = threading.RLock()


async def in_background(call: Callable[[], T]) -> T:
    """Call a function in a new thread.

    The end of a loop waits for its executor's threads, but not for this one.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        if not done.done():
            set_outcome(outcome)

    def run() -> None:
        outcome: tuple[Callable[[Any], None], Any]
        try:
            outcome = done.set_result, call()
        except Exception as error:
            outcome = done.set_exception, error
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(finish, *outcome)

    threading.Thread(target=run, name="dgpu-background", daemon=True).start()
    return await done


async def ended(threads: Iterable[threading.Thread], seconds: float) -> None:
    """Return when threads have ended, after ``seconds`` at the latest.

    An exiting interpreter stops its daemon threads. Within C++ that ends the process with
    ``terminate called without an active exception``.
    """
    late = time.monotonic() + seconds
    while any(thread.is_alive() for thread in threads) and time.monotonic() < late:
        await asyncio.sleep(PAUSE)


def stack_of(thread: threading.Thread) -> str:
    """Return what a thread is at, as a traceback shows it; nothing if it has ended."""
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)) if frame is not None else ""


def exit_quickly() -> None:
    """Have this process end without a search for garbage.

    With torch, Numba and Dask imported that takes 0.9 s of CPU time, without the search 0.15 s.
    Nothing that it would free outlives the process.
    """
    atexit.unregister(gc.freeze)  # of an earlier call
    atexit.register(gc.freeze)


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
