"""Several calls of one operation: a few at a time, with common operands sent once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import as_completed as completed
from typing import TYPE_CHECKING, Any

from dask_dgpu.arguments import check_flag, sequence
from dask_dgpu.batches.compute import compute
from dask_dgpu.batches.held import TEMPORARIES
from dask_dgpu.batches.operands import is_operand
from dask_dgpu.batches.operations import Operation, resolve
from dask_dgpu.batches.overlaps import check_no_overlap
from dask_dgpu.batches.progress import Batches
from dask_dgpu.batches.request import Request
from dask_dgpu.batches.run import operand_or_none, template_of
from dask_dgpu.batches.shared import Shared
from dask_dgpu.batches.sites import opened
from dask_dgpu.errors import RunManyError

if TYPE_CHECKING:
    from distributed import Client

IN_FLIGHT = 2
"""Calls at a time: operands of one are transferred while another is computed."""


def run_many(
    op: Any,
    calls: Sequence[Sequence[Any]],
    *,
    as_completed: bool = False,
    out: Sequence[Any] | None = None,
    client: Client | None = None,
    progress: bool = True,
    temporaries: float = TEMPORARIES,
    **options: Any,
) -> Any:
    """Compute a function of several tuples of host arrays, as :func:`run` does for one.

    Parameters
    ----------
    op : str or callable
        As for :func:`run`.
    calls : sequence of tuple
        The positional arguments of each call. An array that is an element of several tuples, the
        same object, is sent once and kept, as far as memory allows.
    as_completed : bool, optional
        Whether to return an iterator over the results in the order in which they are ready.
    out : sequence of arrays, optional
        One array for the result of each call. They share no memory with each other, nor with any
        operand.
    client : distributed.Client, optional
        As for :func:`run`.
    progress : bool, optional
        Whether to draw a bar that counts calls, if they take over two seconds.
    temporaries : float, optional
        As for :func:`run`.
    **options
        Arguments of the operation, the same for each call.

    Returns
    -------
    list or iterator
        The results in the order of ``calls``. With ``as_completed`` an iterator over the index of
        each call and its result, or its exception; the calls begin at its first step, and closing
        it drops those that have not begun.

    Raises
    ------
    RunManyError
        If calls failed, after all others have ended. It has the results.
    ValueError, TypeError
        If an argument is not allowed.

    See Also
    --------
    run : One call.

    Notes
    -----
    Two calls are under way at a time, each with an equal share of the memory: while one is
    computed, operands of the other are loaded. Results that are returned stay in memory; write
    them to ``out`` if they are too many.

    Examples
    --------
    >>> import numpy as np, dask_dgpu as dgpu
    >>> x, y = np.eye(2), np.ones((2, 2))
    >>> [each.tolist() for each in dgpu.run_many("matmul", [(x, y), (y, y)])]
    [[[1.0, 1.0], [1.0, 1.0]], [[2.0, 2.0], [2.0, 2.0]]]
    """
    check_flag("as_completed", as_completed)
    check_flag("progress", progress)
    what = "a sequence of tuples of arrays"
    tuples = [
        sequence(f"calls[{at}]", each, "a tuple of arguments")
        for at, each in enumerate(sequence("calls", calls, what))
    ]
    outs = [None] * len(tuples) if out is None else sequence("out", out, "a sequence of arrays")
    if len(outs) != len(tuples):
        raise ValueError(f"expected out to have one array per call, {len(tuples)}, got {len(outs)}")
    _check_apart(tuples, options, outs)
    operation = resolve(op).declaring(temporaries)
    iterator = _results(operation, tuples, options, outs, client, bool(progress))
    if as_completed:
        return iterator
    found = dict(iterator)
    results = [found[at] for at in range(len(tuples))]
    failed = [at for at, each in enumerate(results) if isinstance(each, Exception)]
    if failed:
        raise RunManyError(results, failed) from results[failed[0]]
    return results


def _check_apart(
    calls: Sequence[tuple[Any, ...]], options: dict[str, Any], outs: Sequence[Any]
) -> None:
    """Raise if a call may write what another one reads or writes; nobody knows which is first."""
    written = {f"out[{at}]": each for at, each in enumerate(outs) if each is not None}
    read = {
        f"calls[{at}][{place}]": each
        for at, call in enumerate(calls)
        for place, each in enumerate(call)
    }
    check_no_overlap(written, {**options, **read})


def _results(
    operation: Operation,
    calls: Sequence[tuple[Any, ...]],
    options: dict[str, Any],
    outs: Sequence[Any],
    client: Client | None,
    progress: bool,
) -> Iterator[tuple[int, Any]]:
    """Yield the index of each call, and its result or error, as they end."""
    in_flight = min(IN_FLIGHT, max(1, len(calls)))
    title = f"{operation.name}, calls"
    with opened(client) as site, Batches(title, len(calls), progress) as bar:
        shared = _shared(calls, options, site.room / (in_flight + 1))
        room = site.room / (in_flight + bool(shared.identities and in_flight > 1))

        def run(at: int) -> Any:
            try:
                template = template_of(operation, calls[at], options, operand_or_none)
                request = Request(operation, template, site)
                return compute(request, room, outs[at], shared, progress=False)
            except Exception as error:
                return error

        pool = ThreadPoolExecutor(in_flight, "dgpu-call")
        try:
            futures = {pool.submit(run, at): at for at in range(len(calls))}
            for future in completed(futures):
                bar.advance()
                yield futures.pop(future), future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _shared(calls: Sequence[tuple[Any, ...]], options: dict[str, Any], limit: float) -> Shared:
    """Return what keeps the operands of several calls."""
    named = [id(value) for value in options.values() if is_operand(value)]
    used = [id(value) for call in calls for value in call if is_operand(value)]
    return Shared([*used, *named * len(calls)], limit)
