"""The end of a communicator: aborted, closed, or out of time.

Every transport has one :class:`Lifetime` per communicator and waits on it alone, so that an
abort from any thread wakes all waiting threads at once.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from dask_dgpu.errors import CommAbortedError, CommError


class Lifetime:
    """Whether a communicator may still be used, and waiting for its transfers.

    Parameters
    ----------
    on_abort : callable, optional
        Called once, with no lock held, by the aborting thread; must not block.
    threads : WeakSet of Thread, optional
        A set for threads that end soon after the communicator.
    """

    def __init__(
        self,
        on_abort: Callable[[], None] | None = None,
        threads: weakref.WeakSet[threading.Thread] | None = None,
    ) -> None:
        self.changed = threading.Condition()
        self.threads: weakref.WeakSet[threading.Thread] = (
            weakref.WeakSet() if threads is None else threads
        )
        self.reason: str | None = None
        self._on_abort = on_abort
        self._children: weakref.WeakSet[Lifetime] = weakref.WeakSet()

    def adopt(self, child: Lifetime) -> None:
        """Abort ``child`` together with this one."""
        with self.changed:
            self._children.add(child)
            reason = self.reason
        if reason is not None:
            child.abort(reason)

    def abort(self, reason: str) -> None:
        """End it, children too; only the first reason is kept."""
        with self.changed:
            children = list(self._children)
            first = self.reason is None
            if first:
                self.reason = reason
                self.changed.notify_all()
        if first and self._on_abort is not None:
            self._on_abort()
        for child in children:
            child.abort(reason)

    def check(self) -> None:
        """Raise if it has ended."""
        if self.reason is not None:
            raise CommAbortedError(f"the communicator was aborted: {self.reason}")

    def wake(self) -> None:
        """Make all waiting threads test their condition again."""
        with self.changed:
            self.changed.notify_all()

    def wait_for(self, ready: Callable[[], bool], limit: float | None, phase: str) -> None:
        """Wait until ``ready()``; the thread that makes it true notifies ``changed``.

        Parameters
        ----------
        ready : callable
            The condition. If it holds, an abort is not reported.
        limit : float or None
            Seconds until this raises :class:`~dask_dgpu.errors.CommError`; ``None`` waits
            until it is ready or aborted.
        phase : str
            The caller's activity, for the message.
        """
        with self.changed:
            self.changed.wait_for(lambda: ready() or self.reason is not None, limit)
            if ready():
                return
            self.check()
        raise CommError(f"{phase} did not finish within its time limit")
