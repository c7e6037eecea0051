"""Host arrays in, host arrays out: ``run``, ``run_many`` and ``plan``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import as_completed as completed
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_dgpu.arguments import check_flag, integer, sequence
from dask_dgpu.batches.call import BatchCall, Request
from dask_dgpu.batches.executor import Shared, bar, compute
from dask_dgpu.batches.held import TEMPORARIES
from dask_dgpu.batches.operations import resolve
from dask_dgpu.batches.plan import Plan
from dask_dgpu.batches.planning import in_passes, plan_passes
from dask_dgpu.batches.sinks import check_no_overlap
from dask_dgpu.batches.sites import opened
from dask_dgpu.batches.sources import Operand, is_operand, numbers, operand
from dask_dgpu.batches.whole import Whole
from dask_dgpu.errors import RunManyError
from dask_dgpu.kinds import of_either_kind

if TYPE_CHECKING:
    from distributed import Client

IN_FLIGHT = 2
"""Calls of ``run_many`` at a time: operands of one are transferred while another is computed."""


@of_either_kind
def run(
    op: Any,
    *arrays: Any,
    out: Any = None,
    client: Client | None = None,
    progress: bool = True,
    temporaries: float = TEMPORARIES,
    **options: Any,
) -> Any:
    """Compute a function of host arrays of any size, in as many batches as the memory needs.

    Parameters
    ----------
    op : str or callable
        The name of an operation: ``"matmul"``, ``"dot"``, ``"tensordot"``, ``"einsum"``,
        ``"conv2d"``, ``"stencil"``, ``"sum"``, ``"mean"``, ``"max"``, ``"min"``, ``"gelu"``, a
        transform (``"fft2"``, ``"dctn"``) or a ufunc of NumPy (``"exp"``, ``"add"``). Or such a
        function of dask_dgpu, Dask or NumPy, or any function of Dask arrays that returns one.
    *arrays : array_like or other arguments
        NumPy arrays, memory maps, datasets of zarr or HDF5 (anything with ``shape``, ``dtype`` and
        slices), or Dask arrays. Other arguments are passed on, as the subscripts of ``einsum``.
    out : array, optional
        NumPy array, memory map, zarr or HDF5 dataset for the result, of its shape. It shares no
        memory with ``arrays``, nor with arrays that a function reads otherwise, which are not
        checked.
    client : distributed.Client, optional
        The cluster; by default the current client's. Without a client, threads of this process
        compute.
    progress : bool, optional
        Whether to draw a bar that counts batches, on the standard error, if it takes over two
        seconds.
    temporaries : float, optional
        For a function that is not known by name: the blocks that it allocates at a time beside its
        result, each as large as the largest that it reads or returns. Named operations know theirs.
    **options
        Arguments of the operation: ``axis=0``, ``stride=2``.

    Returns
    -------
    array or scalar
        ``out``, or a new NumPy array, of the machine's byte order. A result without axes is a
        scalar.

    Raises
    ------
    ValueError
        If a name is unknown, shapes do not match, or ``out`` has another shape, cannot be written,
        or may share memory with an argument; and as the operation does.
    TypeError
        If an argument has another type than described, or is a masked or a device array, or the
        function returns no single array.
    DgpuError
        If not even the smallest batch fits, or memory is exhausted or workers are lost twice. For
        memory it is an ``OutOfMemoryError``.

    See Also
    --------
    plan : The batches, bytes and time, before anything runs.
    run_many : Several calls of one operation.

    Notes
    -----
    It follows :func:`plan`. The table in *My array does not fit* says how each operation is cut. An
    operand that is not cut is sent once. While a batch is computed, the next one is loaded and the
    last one is written. Elementwise work has the same bits for any number of batches; contractions
    and sums that are cut differ by rounding. A transform along several axes that do not fit
    together goes in passes; between them the results are in ``out``, or in a temporary host array
    if ``out`` has another shape or dtype or is no NumPy array.

    If a batch fails, ``out`` has the results of the batches before it, maybe of an earlier pass,
    and keeps its other elements, except for a part that was arriving from workers. The error has a
    note with the number of parts that were written. After a ``MemoryError`` or the loss of a worker
    the parts that are not written are computed in batches of half the planned bytes, once; after a
    loss in the smallest batches if none is so small. A function without a name in this list runs as
    one Dask graph; then any blocks may have been written, and the second time all are, in smaller
    blocks.

    A ``strategy`` of ``"matmul"`` holds for batches that have something to divide. As in
    :func:`matmul`, options need operands of one or two axes. A ``casting`` of a ufunc holds for
    operands and for ``out``, as in NumPy. A Dask array is computed part by part, with the work that
    parts share, such as a sum before them: persist such an array first.

    Examples
    --------
    >>> import numpy as np, dask_dgpu as dgpu
    >>> x = np.arange(6.0).reshape(2, 3)
    >>> dgpu.run("matmul", x, x.T)
    array([[ 5., 14.],
           [14., 50.]])
    """
    check_flag("progress", progress)
    operation = resolve(op).declaring(temporaries)
    with opened(client) as site:
        request = Request.made(operation, arrays, options, site, operand)
        return compute(request, site.room, out, Shared(), progress=bool(progress))


@of_either_kind
def plan(
    op: Any,
    *arrays: Any,
    dtype: Any = "float64",
    client: Client | None = None,
    temporaries: float = TEMPORARIES,
    **options: Any,
) -> Plan:
    """Plan a call of :func:`run`: whether it fits, its batches, its bytes and its time.

    Parameters
    ----------
    op : str or callable
        As for :func:`run`. A function that is not known by name is called, to build its graph.
    *arrays : array_like, tuple of int or other arguments
        Arrays as for :func:`run`, or their shapes. A tuple of numbers in another place is an
        argument as for :func:`run`, such as axes; in a function that is not known by name it is a
        shape, unless an array is given too.
    dtype : dtype, optional
        The dtype of arrays that are given by their shapes.
    client : distributed.Client, optional
        The cluster; by default the current client's, or this process.
    temporaries : float, optional
        As for :func:`run`.
    **options
        Arguments of the operation.

    Returns
    -------
    Plan
        Prints and displays as a table, and has ``to_dict``.

    Raises
    ------
    ValueError, TypeError
        As :func:`run`.

    See Also
    --------
    run : Follows the plan.
    explain : The plan of a Dask graph.

    Notes
    -----
    The bytes of a device are shares of equal size. ``dgpu.memory.limit``,
    ``dgpu.memory.safety-margin`` and ``dgpu.memory.cap`` say how many may be used, those of
    :func:`enable` if it was called. Without a limit and a cluster it is the available memory.

    Examples
    --------
    >>> import dask, dask_dgpu as dgpu
    >>> with dask.config.set({"dgpu.memory.limit": "1 GiB"}):
    ...     found = dgpu.plan("matmul", (20_000, 8192), (8192, 4096))
    >>> found.batches, found.rows
    (8, 2500)
    """
    operation = resolve(op).declaring(temporaries)
    kind = numbers("dtype", dtype)
    shapes = {f"arrays[{i}]" for i in range(len(arrays)) if operation.is_array(arrays, i)}

    def make(name: str, value: Any) -> Operand | None:
        is_shape = isinstance(value, tuple) and value and name in shapes
        if is_shape and all(isinstance(size, int | np.integer) for size in value):
            shape = tuple(integer(f"each length of {name}", size, 0) for size in value)
            return operand(name, np.broadcast_to(np.zeros((), kind), shape))
        return operand(name, value)

    with opened(client) as site:
        request, room = Request.made(operation, arrays, options, site, make), site.room
        call = BatchCall.planned(request)
        if call is None:
            return Whole.planned(request, room, send=False).timed()
        return plan_passes(call.title, in_passes(call, room), room, timed=True)


@of_either_kind
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
    given = sequence("calls", calls, "a sequence of tuples of arrays")
    tuples = [sequence(f"calls[{i}]", each, "a tuple") for i, each in enumerate(given)]
    outs = [None] * len(tuples) if out is None else sequence("out", out, "a sequence of arrays")
    if len(outs) != len(tuples):
        raise ValueError(f"expected out to have one array per call, {len(tuples)}, got {len(outs)}")
    written = {f"out[{i}]": out for i, out in enumerate(outs) if out is not None}
    read = {
        f"calls[{i}][{place}]": each
        for i, call in enumerate(tuples)
        for place, each in enumerate(call)
    }
    check_no_overlap(written, {**options, **read})  # nobody knows which call is first
    operation = resolve(op).declaring(temporaries)
    in_flight = min(IN_FLIGHT, max(1, len(tuples)))

    def results() -> Iterator[tuple[int, Any]]:
        """Yield the index of each call, and its result or error, as they end."""
        title = f"{operation.name}, calls"
        with opened(client) as site, bar(title, len(tuples), bool(progress)) as advance:
            used = [id(value) for call in tuples for value in call if is_operand(value)]
            used += [id(value) for value in options.values() if is_operand(value)] * len(tuples)
            shared = Shared(used, site.room / (in_flight + 1))
            room = site.room / (in_flight + bool(shared.identities and in_flight > 1))

            def compute_one(at: int) -> Any:
                try:
                    request = Request.made(operation, tuples[at], options, site, operand)
                    return compute(request, room, outs[at], shared, progress=False)
                except Exception as error:
                    return error

            pool = ThreadPoolExecutor(in_flight, "dgpu-call")
            try:
                futures = {pool.submit(compute_one, i): i for i in range(len(tuples))}
                for future in completed(futures):
                    advance()
                    yield futures.pop(future), future.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    if as_completed:
        return results()
    by_number = dict(sorted(results(), key=itemgetter(0)))
    failed = [at for at, each in by_number.items() if isinstance(each, Exception)]
    if failed:
        raise RunManyError(list(by_number.values()), failed) from by_number[failed[0]]
    return list(by_number.values())
