"""Threads that block neither the event loop, nor the end of a process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

PAUSE = 0.01


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
