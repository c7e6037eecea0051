"""Host arrays in, host arrays out: ``run``, ``run_many`` and ``plan``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_dgpu.arguments import check_flag, expected, integer
from dask_dgpu.batches.call import Call
from dask_dgpu.batches.compute import compute
from dask_dgpu.batches.held import TEMPORARIES
from dask_dgpu.batches.operands import (
    Described,
    Operand,
    Template,
    is_operand,
    numbers,
    operand,
)
from dask_dgpu.batches.operations import Operation, resolve
from dask_dgpu.batches.passes import in_passes
from dask_dgpu.batches.plan import Plan
from dask_dgpu.batches.planning import plan_passes
from dask_dgpu.batches.request import Request
from dask_dgpu.batches.shared import Shared
from dask_dgpu.batches.sites import opened
from dask_dgpu.batches.whole import Whole

if TYPE_CHECKING:
    from distributed import Client


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
        elements with ``arrays``, nor with arrays that a function reads otherwise, which are not
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
        or shares elements with an argument; and as the operation does.
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
    It follows :func:`plan`. Batches are parts of the operands: rows of the first operand of a
    product, and columns of the second or parts of the contraction if that transfers fewer bytes;
    axes of a transform that are not transformed; parts of any axis of elementwise work. An
    operand that is not cut is sent once. A transform along several axes that do not fit together
    goes in passes, along some of them at a time; between passes the results are in ``out``, or in
    a temporary host array if ``out`` has another shape or dtype or is no NumPy array. While a batch
    is computed, the next one is loaded and the last one is written. Elementwise work has the same
    bits for any number of batches; contractions and sums that are cut differ by rounding.

    If a batch fails, ``out`` has the results of the batches before it, and keeps its other
    elements. The error has a note with the number of parts that were written. In passes, ``out``
    may hold results of an earlier pass too. After a ``MemoryError`` or the loss of a worker the
    parts that are not written are computed in batches of half the planned bytes, once; after a
    loss in the smallest batches if none is so small. Functions without a name in this list run as
    one Dask graph; then any blocks may have been written, and the second time all are, in smaller
    blocks. Operands that were being sent to a lost worker are sent once more.

    A ``strategy`` of ``"matmul"`` holds for batches that have something to divide. As in
    :func:`matmul`, options need operands of one or two axes. A ``casting`` of a ufunc holds for
    operands and for ``out``, as in NumPy.

    A Dask array is computed part by part. Work that parts share, such as a sum before them, is
    done again for each: persist such an array first.

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
    template = template_of(operation, arrays, options, operand_or_none)
    with opened(client) as site:
        request = Request(operation, template, site)
        return compute(request, site.room, out, Shared(), progress=bool(progress))


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

    shapes = {f"arrays[{at}]" for at in range(len(arrays)) if operation.is_array(arrays, at)}

    def make(name: str, value: Any) -> Operand | None:
        is_shape = isinstance(value, tuple) and name in shapes
        if is_shape and all(isinstance(size, int | np.integer) for size in value) and value:
            shape = tuple(integer(f"each length of {name}", size, 0) for size in value)
            return operand(name, Described(shape, kind))
        return operand_or_none(name, value)

    template = template_of(operation, arrays, options, make)
    with opened(client) as site:
        request, room = Request(operation, template, site), site.room
        call = Call.planned(request)
        if call is None:
            return Whole.planned(request, room, send=False).plan
        return plan_passes(call.title, in_passes(call, room), room)


def template_of(
    operation: Operation, args: Sequence[Any], options: Mapping[str, Any], make: Any
) -> Template:
    """Return the arguments of a call, with slots for arrays."""
    plain: set[str] = set(operation.plain)
    if plain:
        names = list(inspect.signature(operation.function).parameters)
        plain |= {f"arrays[{at}]" for at, name in enumerate(names) if name in plain}
    template = Template.of(
        args, options, lambda name, value: None if name in plain else make(name, value)
    )
    if not template.operands:
        expected("arrays", "at least one array with axes", tuple(args), TypeError)
    return template


def operand_or_none(name: str, value: Any) -> Operand | None:
    """Return an operand for an array with axes, ``None`` for other arguments."""
    return operand(name, value) if is_operand(value) else None
