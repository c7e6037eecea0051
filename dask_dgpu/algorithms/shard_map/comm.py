"""The communicator of users' functions: collectives that take arrays and return new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from dask_dgpu.comm.common import check_reduction, reduce_parts
from dask_dgpu.comm.protocol import Comm, Reduction
from graph_opt.model.layout import even_spans

Array = Any


class ShardComm:
    """One of ``size`` ranks that run the same function; :func:`dask_dgpu.shard_map` makes it.

    All ranks call the same methods in the same order, except :meth:`exchange`, which only the
    ranks with messages call. Arrays are NumPy's on CPUs and CuPy's on GPUs, of bool, integers,
    floats or complex numbers. Results are new arrays. On a GPU the current stream of CuPy waits
    for them, the host does not.

    Parameters
    ----------
    comm : Comm
        The gang's communicator.
    as_array : callable
        It returns a value as an array of the rank's device.

    Attributes
    ----------
    rank : int
        The number of this rank.
    size : int
        The number of ranks.
    """

    def __init__(self, comm: Comm, as_array: Callable[[Any], Array]) -> None:
        self.rank, self.size = comm.rank, comm.size
        self._comm, self.as_array = comm, as_array

    def bounds(self, length: int, rank: int | None = None) -> tuple[int, int]:
        """Return where the shard of a rank, by default of this one, begins and ends on an axis.

        Parameters
        ----------
        length : int
            Number of elements of the axis.
        rank : int, optional
            The rank.
        """
        return even_spans(0, length, self.size)[self.rank if rank is None else rank]

    def all_reduce(self, array: Any, op: Reduction = "sum") -> Array:
        """Return the sum, or the least or largest elements, of the arrays of all ranks.

        Parameters
        ----------
        array : array_like
            Of one shape and dtype on all ranks.
        op : {"sum", "min", "max"}, optional
            How elements are reduced. Every rank gets the same bits.
        """
        result = self.as_array(array).copy(order="C")
        self._comm.all_reduce(result, op).wait()
        return result

    def all_gather(self, array: Any, lengths: Sequence[int] | None = None) -> Array:
        """Return the arrays of all ranks, one after the other along the first axis.

        Parameters
        ----------
        array : array_like
            Of one axis or more, and of one dtype and the same further lengths on all ranks.
        lengths : sequence of int, optional
            The lengths of the arrays of all ranks along the first axis, by default that of this
            rank's.
        """
        mine = self._message(array)
        if lengths is None:
            lengths = [len(mine)] * self.size
        edges = list(accumulate(lengths, initial=0))
        whole = np.empty((edges[-1], *mine.shape[1:]), mine.dtype, like=mine)
        parts = [whole[lo:hi] for lo, hi in pairwise(edges)]
        self._exchange([(rank, mine) for rank in range(self.size)], enumerate(parts))
        return whole

    def reduce_scatter(self, array: Any, op: Reduction = "sum") -> Array:
        """Return this rank's shard, along the first axis, of what :meth:`all_reduce` returns.

        Parameters
        ----------
        array : array_like
            Of one axis or more, and of one shape and dtype on all ranks.
        op : {"sum", "min", "max"}, optional
            How elements are reduced, in the order of the ranks.
        """
        given = self._message(array)
        check_reduction(given, op)
        spans = even_spans(0, len(given), self.size)
        parts = self.all_to_all([given[lo:hi] for lo, hi in spans])
        reduce_parts(parts[0], parts, op)
        return parts[0]

    def all_to_all(self, arrays: Sequence[Any]) -> list[Array]:
        """Send one array to each rank, and return those from each rank, in order of the ranks.

        Parameters
        ----------
        arrays : sequence of array_like
            One for each rank, of one axis or more. All of all ranks have one dtype and the same
            further lengths; those along the first axis are free, and the host reads them.
        """
        given = [self._message(array) for array in arrays]
        if len(given) != self.size:
            raise ValueError(
                f"expected arrays to have one for each of {self.size} ranks, got {len(given)}"
            )
        sent = self.as_array(np.array([len(each) for each in given], np.int64))
        received = np.empty_like(sent)
        self._exchange(enumerate(sent.reshape(-1, 1)), enumerate(received.reshape(-1, 1)))
        kind, further = given[0].dtype, given[0].shape[1:]
        result = [np.empty((n, *further), kind, like=sent) for n in received.tolist()]
        self._exchange(enumerate(given), enumerate(result))
        return result

    def broadcast(self, array: Any, root: int = 0) -> Array:
        """Return the array of one rank.

        Parameters
        ----------
        array : array_like
            Of one shape and dtype on all ranks; the values of others than ``root`` do not count.
        root : int, optional
            The rank whose array it is.
        """
        message = self._message(array).copy()
        if self.rank == root:
            self._exchange([(rank, message) for rank in range(self.size) if rank != root], [])
        else:
            self._exchange([], [(root, message)])
        return message

    def shift(self, array: Any, by: int = 1, shape: tuple[int, ...] | None = None) -> Array:
        """Send an array ``by`` ranks ahead, in a ring, and return the one from as many before.

        Parameters
        ----------
        array : array_like
            Of one dtype on all ranks.
        by : int, optional
            How far it goes; a negative number is backwards.
        shape : tuple of int, optional
            The shape of the array that comes, by default that of ``array``.
        """
        given = self._message(array)
        target, source = (self.rank + by) % self.size, (self.rank - by) % self.size
        shape = given.shape if shape is None else tuple(shape)
        received = np.empty(shape, given.dtype, like=given)
        self._exchange([(target, given)], [(source, received)])
        return received

    def exchange(
        self, arrays: Mapping[int, Any], shapes: Mapping[int, tuple[int, ...]], dtype: Any
    ) -> dict[int, Array]:
        """Send arrays to some other ranks, and return those from some, point to point.

        Parameters
        ----------
        arrays : mapping of int to array_like
            What is sent, by rank.
        shapes : mapping of int to tuple of int
            The shapes of the arrays that come, by rank.
        dtype : dtype
            The dtype of all.
        """
        sends = {rank: self._message(each, dtype) for rank, each in arrays.items()}
        like = self.as_array(np.empty(0, dtype))
        received = {rank: np.empty(shape, dtype, like=like) for rank, shape in shapes.items()}
        self._exchange(sends.items(), received.items())
        return received

    def barrier(self) -> None:
        """Return when every rank has called this."""
        self._comm.barrier()

    def _message(self, array: Any, dtype: Any = None) -> Array:
        message = self.as_array(array)
        return np.ascontiguousarray(message if dtype is None else message.astype(dtype, copy=False))

    def _exchange(
        self, sends: Iterable[tuple[int, Array]], receives: Iterable[tuple[int, Array]]
    ) -> None:
        """Send and receive arrays, without empty ones."""
        messages = [[each for each in every if each[1].size] for every in (sends, receives)]
        if any(messages):
            self._comm.exchange(*messages).wait()
