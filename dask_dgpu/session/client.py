"""The client of :func:`dask_dgpu.start`, which owns its cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from dask.typing import no_default
from distributed import Client

logger = logging.getLogger(__name__)

CLOSING = "60s"
"""Time limit for closing the client, and then for its cluster."""


class OwningClient(Client):
    """A client that closes its cluster with itself, and then calls ``undo`` once.

    With a ``later`` client of this class that is open, that one calls it, after its own: what a
    client changed is undone in the reverse order.

    A timeout while closing is only logged: an error could hide results of the user.
    """

    undo: Callable[[], None] | None = None
    later: OwningClient | None = None

    def __repr__(self) -> str:
        """Return what Dask's own client would."""
        return super().__repr__().replace(type(self).__name__, "Client", 1)

    def close(self, timeout: Any = no_default) -> None:
        """Close the client, then its cluster."""
        limit = CLOSING if timeout is no_default else timeout
        cluster: Any = self.cluster
        scheduler: Any = self.scheduler
        with suppress(Exception):  # tasks of a measurement would be lost, and reported, one by one
            self.sync(scheduler.dgpu_quiet, callback_timeout=limit)
        try:
            for what, close in (("client", super().close), ("cluster", cluster.close)):
                try:
                    close(timeout=limit)
                except TimeoutError:
                    logger.warning("the %s is not closed after %s", what, limit)
        finally:
            self._undo()

    async def _close(self, fast: bool = False) -> None:
        try:
            await super()._close(fast=fast)
        finally:
            self._undo()

    def _undo(self) -> None:
        undo, self.undo = self.undo, None
        if undo is None:
            return
        later = self.later
        while later is not None:
            if later.undo is not None:
                later.undo = partial(_in_turn, later.undo, undo)
                return
            later = later.later
        undo()


def _in_turn(*functions: Callable[[], None]) -> None:
    for function in functions:
        function()
