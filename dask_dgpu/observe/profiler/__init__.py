"""A profiler of gangs and Dask tasks: a table by operation, and a timeline over ranks."""

from __future__ import annotations

import logging
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from dask_dgpu.arguments import check_client
from dask_dgpu.environment.facts import chosen_client
from dask_dgpu.errors import DgpuError
from dask_dgpu.observe.profiler.sources import ClusterSource, LocalSource
from dask_dgpu.observe.profiler.table import ProfileTable, plain
from dask_dgpu.observe.profiler.timeline import Timeline, write_trace
from dask_dgpu.runtime.recording import Profile

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

__all__ = ["ProfileTable", "Profiler", "Timeline"]


class Profiler:
    """Records what gangs and Dask's tasks do in a ``with`` block.

    Parameters
    ----------
    client : distributed.Client, optional
        The cluster to profile; by default that of the client that is current when the block
        begins. Without a client, gangs and tasks of this process are profiled.

    Raises
    ------
    TypeError
        If ``client`` is no client, or an asynchronous one.
    ValueError
        If ``client`` is closed.
    DgpuError
        If a block begins within another one of the same profiler, if there is nothing to show
        because no block has begun, or if the client was closed within the block.

    See Also
    --------
    explain : Predictions, and the measured steps of the last computation of one array.

    Notes
    -----
    Only what ends within the block counts: wait for persisted arrays. On a cluster this includes
    the work of other clients. An error in the block passes through, and what ran before it can be
    shown. Each further block replaces the record. Several profilers may run at once.

    Ranks report the times of their steps, and the bytes that they sent, in any case. On GPUs a
    profiler adds an event on the compute lane for each step. Its cost is below 3 %.

    It prints as its table. In a notebook, it displays table and timeline.

    Examples
    --------
    >>> import dask.array as da, dask_dgpu as dgpu
    >>> x = da.ones((6, 6), chunks=2)
    >>> with dgpu.enable(local_ranks=3, when="always"), dgpu.Profiler() as prof:
    ...     total = (x @ x).sum().compute(scheduler="threads")
    >>> [row["operation"] for row in prof.to_dict()["rows"] if row["by"] == "gang"]
    ['ones_like', 'matmul', 'sum']
    """

    def __init__(self, client: Client | None = None) -> None:
        if client is not None:
            check_client("client", client)
        self._client = client
        self._source: ClusterSource | LocalSource | None = None
        self._profile: Profile | None = None

    def __enter__(self) -> Self:
        """Begin to record."""
        if self._source is not None:
            raise DgpuError("expected a profiler that is not in use, got one within its own block")
        client = chosen_client(self._client)
        source: ClusterSource | LocalSource
        source = LocalSource() if client is None else ClusterSource(client)
        source.start()
        self._source, self._profile = source, None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the record; an error of the block passes through."""
        source, self._source = self._source, None
        assert source is not None
        try:
            self._profile = source.profile(end=True)
        except Exception:
            if error is None:
                raise
            logger.warning("the record of a profiler is lost", exc_info=True)

    def table(self) -> ProfileTable:
        """Return the totals by operation, so far if the block has not ended.

        Returns
        -------
        ProfileTable
            Prints as a table, and displays as one in a notebook.
        """
        return ProfileTable(self._record())

    def timeline(self) -> Timeline:
        """Return what each rank did when.

        Returns
        -------
        Timeline
            Displays in a notebook, and has :meth:`Timeline.save`.
        """
        return Timeline(self._record())

    def to_chrome_trace(self, path: str | PathLike[str]) -> None:
        """Write the timeline to a file that Perfetto and ``chrome://tracing`` open.

        Parameters
        ----------
        path : path-like
            The file, which is overwritten.
        """
        write_trace(self._record(), path)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values.

        Returns
        -------
        dict
            ``"seconds"`` of the block; ``"gangs"`` and ``"tasks"`` that ended in it, and the number
            of those still ``"running"``; ``"rows"``, a list of dicts with the columns of the table,
            ``None`` for what is not known; ``"events"``, a list of dicts with worker or rank,
            track, operation, start and stop in seconds from the beginning; ``"dropped"``, the
            number of further events; ``"errors"``, their texts.
        """
        return plain(self._record())

    def __str__(self) -> str:
        """Return the table as text, or say that there is none yet."""
        return str(self.table()) if self._source or self._profile else "a profiler before its block"

    def __repr__(self) -> str:
        """Return the text, for a prompt shows this."""
        return str(self)

    def _repr_html_(self) -> str:
        if self._source is None and self._profile is None:
            return f"<p>{self}</p>"
        record = self._record()
        return ProfileTable(record)._repr_html_() + Timeline(record)._repr_html_()

    def _record(self) -> Profile:
        """Return the record of the last block, or of the present one so far."""
        if self._source is not None:
            return self._source.profile(end=False)
        if self._profile is None:
            raise DgpuError("expected a profiler with a record, got one without: use it as `with`")
        return self._profile
