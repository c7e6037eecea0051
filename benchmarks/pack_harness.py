"""Ways to copy many pieces on one GPU: what ``pack_gpu.py`` measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from dask_dgpu.kernels.pack import Arrays, Described, InArrays, InMessage, Pieces, copy_pieces

Array = Any

DTYPE = "float32"
COLUMNS_A_PIECE = 1024
SIDE = 16
"""A block is so many pieces high and wide."""


def shape_of(kib: int) -> tuple[int, int]:
    """Return rows and columns of a piece of so many KiB."""
    return kib * 1024 // (COLUMNS_A_PIECE * np.dtype(DTYPE).itemsize), COLUMNS_A_PIECE


def pieces_of(message: Array, blocks: list[Array], shape: tuple[int, int]) -> tuple[Pieces, Pieces]:
    """Return what unpacks a message into blocks, and what packs it.

    Parameters
    ----------
    message : array
        Flat; block after block, in each its pieces in row-major order.
    blocks : list of array
        Each of ``SIDE`` by ``SIDE`` pieces.
    shape : tuple of int
        Rows and columns of a piece.

    Returns
    -------
    unpack, pack : Pieces
        From the message to the blocks, and back; described once, as by a plan that is
        used again.
    """
    count = len(blocks) * SIDE**2
    which, within = np.divmod(np.arange(count), SIDE**2)
    corner = np.stack(np.divmod(within, SIDE), axis=1) * np.array(shape)
    shapes = np.tile(shape, (count, 1))
    inside = InArrays(Arrays(blocks), which, corner)
    flat = InMessage(message, np.arange(count) * (shape[0] * shape[1]))
    unpack = Pieces(shapes, inside, flat, Described())
    return unpack, Pieces(shapes, flat, inside, Described())


def differing(message: Array, blocks: list[Array], shape: tuple[int, int]) -> int:
    """Return how many elements of the message are not where they belong in the blocks."""
    rows, columns = shape
    parts = message.reshape(len(blocks), SIDE, SIDE, rows, columns)
    there = (block.reshape(SIDE, rows, SIDE, columns).swapaxes(1, 2) for block in blocks)
    return sum(int((part != block).sum()) for part, block in zip(parts, there, strict=True))


class Ladder:
    """The ways to copy pieces, from the slowest to the bound.

    Each returns when the GPU is done, but for those that only issue the work. What is
    allocated for a piece is the table that describes it to the kernel.

    Parameters
    ----------
    pieces : Pieces
        What is copied, on the current device.
    source, target : array
        As many bytes, contiguous: for the plain copy.
    """

    def __init__(self, pieces: Pieces, source: Array, target: Array) -> None:
        import cupy

        from dask_dgpu.kernels.device.cuda import CudaDevice
        from dask_dgpu.kernels.pack.descriptors import describe

        self.pieces, self.source, self.target = pieces, source, target
        self.device = CudaDevice()
        table = describe((pieces,))
        if table is None:
            raise RuntimeError("the kernel does not know these pieces")
        tiles = np.diff(table.tiles)
        # one table for each piece: its row, its first tile, all its tiles
        tables = np.column_stack([table.rows, np.zeros_like(tiles), tiles])
        self.tiles, self.words = tiles.tolist(), tables.shape[1]
        pinned = cupy.cuda.alloc_pinned_memory(tables.nbytes)
        self.tables = np.frombuffer(pinned, np.int64, tables.size).reshape(tables.shape)
        self.tables[...] = tables

    def stream_each(self) -> None:
        """For each piece: make a stream, allocate, launch and wait."""
        import cupy

        with _no_pool():
            for piece in range(len(self.tiles)):
                with cupy.cuda.Stream(non_blocking=True) as stream:
                    self._launch(piece)
                    stream.synchronize()

    def wait_each(self) -> None:
        """For each piece: allocate, launch and wait, on a stream that is kept."""
        with _no_pool(), self.device.transferring():
            for piece in range(len(self.tiles)):
                self._launch(piece)
                self._wait()

    def allocate_each(self) -> None:
        """For each piece: allocate and launch; wait once, though each release waits too."""
        with _no_pool(), self.device.transferring():
            for piece in range(len(self.tiles)):
                self._launch(piece)
            self._wait()

    def launch_each(self) -> None:
        """For each piece: launch, with memory from a pool; wait once."""
        with self.device.transferring():
            for piece in range(len(self.tiles)):
                self._launch(piece)
            self._wait()

    def one_launch_anew(self) -> None:
        """Describe all pieces and launch once; wait once."""
        with self.device.transferring():
            copy_pieces(self.device, self.pieces._replace(described=None))
            self._wait()

    def one_launch(self) -> None:
        """Launch once, for all pieces, of which only the places may be new; wait once."""
        with self.device.transferring():
            self.issue_one_launch()
            self._wait()

    def plain_copy(self) -> None:
        """Copy as many bytes without any pieces; wait once."""
        with self.device.transferring():
            self.issue_plain_copy()
            self._wait()

    def issue_one_launch(self) -> None:
        """Issue the copy of all pieces on the current stream."""
        copy_pieces(self.device, self.pieces)

    def issue_plain_copy(self) -> None:
        """Issue the plain copy on the current stream."""
        self.target.data.copy_from_device_async(self.source.data, self.source.nbytes)

    def on_device(self, issue: Callable[[], None], fill: int) -> float:
        """Return the seconds that a GPU takes for work that is there when it comes to it.

        Parameters
        ----------
        issue : callable
            Issues the work.
        fill : int
            Plain copies that the GPU is given before.
        """
        import cupy

        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        with self.device.transferring():
            for _ in range(fill):
                self.issue_plain_copy()
            start.record()
            issue()
            stop.record()
            stop.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, stop)) / 1e3

    def _launch(self, piece: int) -> None:
        """Launch the kernel for one piece, on the current stream."""
        import cupy

        from dask_dgpu.kernels.pack.cuda import THREADS, kernel
        from dask_dgpu.kernels.pack.descriptors import COLUMNS

        table = cupy.empty(self.words, np.int64)
        table.data.copy_from_host_async(self.tables[piece].ctypes.data, table.nbytes)
        every_width = kernel(31)
        every_width((self.tiles[piece],), (THREADS,), (table, table[COLUMNS:], np.int32(1)))

    def _wait(self) -> None:
        import cupy

        cupy.cuda.get_current_stream().synchronize()


@contextmanager
def _no_pool() -> Iterator[None]:
    """Have each allocation be one of CUDA's own, and each release too."""
    import cupy

    with cupy.cuda.using_allocator(None):
        yield
