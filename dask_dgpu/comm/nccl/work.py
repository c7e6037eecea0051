"""The transfers of :class:`~dask_dgpu.comm.nccl.communicator.NcclComm`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dask_dgpu.comm.protocol import Work

if TYPE_CHECKING:
    from dask_dgpu.comm.nccl.communicator import NcclComm


class NcclWork:
    """A transfer on NCCL's stream."""

    def __init__(self, comm: NcclComm, name: str, work: Any, kept: Any) -> None:
        self._comm = comm
        self._name = name
        self._work = work
        self._kept = kept  # NCCL may use the buffers until the wait

    def wait(self) -> None:
        """Make the caller's stream, not the host, wait for the transfer."""
        self._comm._order(self._work, self._name)
        self._work = self._kept = None

    def done(self) -> bool:
        """Return whether the transfer is done, or ``wait`` was called."""
        ended = self._comm._lifetime.reason is not None
        return ended or self._work is None or bool(self._work.is_completed())


class DeferredWork:
    """A transfer with a step after it, on the caller's stream."""

    def __init__(self, work: Work, then: Callable[[], None]) -> None:
        self._work = work
        self._then: Callable[[], None] | None = then

    def wait(self) -> None:
        """Wait, then run the step, once."""
        self._work.wait()
        then, self._then = self._then, None
        if then is not None:
            then()

    def done(self) -> bool:
        """Return whether ``wait`` would return (or raise) without blocking."""
        return self._work.done()
