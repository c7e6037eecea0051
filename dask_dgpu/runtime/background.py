"""Threads of a worker that hold up neither its event loop nor its end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

PAUSE = 0.01


async def in_background(call: Callable[[], T]) -> T:
    """Call a function in a thread of its own.

    A loop waits for its executor's threads before it ends, and for this one it does not.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = call()
        except Exception as raised:
            error = raised
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(finish, result, error)

    threading.Thread(target=run, name="dgpu-background", daemon=True).start()
    return await done


async def ended(threads: Iterable[threading.Thread], seconds: float) -> None:
    """Return when threads have ended; after so many seconds at the latest.

    An interpreter that exits stops its daemons: within C++ that ends the process with
    ``terminate called without an active exception``.
    """
    late = time.monotonic() + seconds
    while any(thread.is_alive() for thread in threads) and time.monotonic() < late:
        await asyncio.sleep(PAUSE)
