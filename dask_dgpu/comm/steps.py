"""A collective in progress: a generator that posts messages, and who runs it.

The generator posts messages, yields them, resumes once they are done, and may post more::

    all_reduce:  all-to-all of pieces | reduce my piece | send it to all
                 ........ yield ..... | ............... | .... yield ...

The caller's thread runs it up to the first ``yield``, so messages are posted in the order of
the calls. A separate thread runs the rest, in whatever order the caller waits. A small collective
of one round has none: its rest runs in the wait, and starting a thread takes longer than the
messages.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Protocol

from dask_dgpu.comm.common import Lifetime
from dask_dgpu.errors import CommError

# Extra seconds for the thread that waits for a message: its error names the peer.
_GRACE = 1.0


class Message(Protocol):
    """A posted send or receive."""

    def wait(self, seconds: float | None) -> None:
        """Block until it is done; raise ``CommError`` if it failed or is late.

        An abort of the communicator must end a wait without a limit.
        """


Steps = Iterator[list[Message]]


class StepsWork:
    """A collective in progress, in ``running`` until it is over."""

    def __init__(
        self, name: str, lifetime: Lifetime, limit: float | None, running: set[StepsWork]
    ) -> None:
        self._name = name
        self._lifetime = lifetime
        self._running = running
        self._deadline = None if limit is None else time.monotonic() + limit
        self._error: CommError | None = None
        self._rest: Steps | None = None
        self._over = False
        self.ended: float | None = None

    def start(self, steps: Steps, by_thread: bool) -> None:
        """Post the first messages; a thread runs the rest, or the wait."""
        first = next(steps, [])
        rest = chain([first], steps)
        self._running.add(self)  # memory of messages must outlast them
        if not first:
            self._finish(rest, aside=True)
        elif by_thread:
            self._start_thread(rest)
        else:
            self._rest = rest

    def _start_thread(self, rest: Steps) -> None:
        # A daemon: a wait inside a transport must not delay the interpreter's exit.
        run = partial(self._finish, rest, aside=True)
        thread = threading.Thread(target=run, name=self._name, daemon=True)
        thread.start()
        with self._lifetime.changed:
            self._lifetime.threads.add(thread)

    def _finish(self, steps: Steps, *, aside: bool) -> None:
        """Run the rest; only ``aside`` of its caller is its end known apart from the wait's."""
        error: CommError | None = None
        try:
            for messages in steps:
                for message in messages:
                    message.wait(self._left(at_least=0.001))
                    self._lifetime.check()
        except CommError as raised:
            error = raised
        except Exception as raised:
            error = CommError(f"{self._name} failed: {raised}")
            error.__cause__ = raised
        with self._lifetime.changed:
            self.ended = time.perf_counter() if aside else None
            self._error, self._over = error, True
            self._running.discard(self)
            self._lifetime.changed.notify_all()

    def _left(self, at_least: float) -> float | None:
        if self._deadline is None:
            return None
        return max(at_least, self._deadline - time.monotonic())

    def wait(self) -> None:
        """Return when the collective is over; raise if it failed."""
        with self._lifetime.changed:
            rest, self._rest = self._rest, None
        if rest is not None:
            self._finish(rest, aside=False)
        left = self._left(at_least=0.0)
        limit = None if left is None else left + _GRACE
        self._lifetime.wait_for(lambda: self._over, limit, self._name)
        if self._error is not None:
            # Our own abort explains more than the effect of a peer's end on a message.
            self._lifetime.check()
            raise self._error
