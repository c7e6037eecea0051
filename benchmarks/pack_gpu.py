"""Unpacking a message of many pieces on one GPU, one improvement after the other, and packing it.

A message holds the pieces one after the other; in the blocks that they belong to they
are rows of wider arrays. The same kernel copies them on every rung of the ladder: what
differs is how it is driven. A plain device copy of as many bytes is the bound.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from harness import Report

from dask_dgpu.kernels.pack import Arrays, InArrays, InMessage, Pieces

Array = Any

OUT = Path(__file__).parent / "results" / "pack-gpu.jsonl"
DTYPE = "float32"
COLUMNS_A_PIECE = 1024
SIDE = 16
"""A block is so many pieces high and wide."""
AHEAD = 0.02
"""Seconds of work that a GPU is given first, so that the host is ahead of it."""


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
        From the message to the blocks, and back.
    """
    count = len(blocks) * SIDE**2
    which, within = np.divmod(np.arange(count), SIDE**2)
    corner = np.stack(np.divmod(within, SIDE), axis=1) * np.array(shape)
    shapes = np.tile(shape, (count, 1))
    inside = InArrays(Arrays(blocks), which, corner)
    flat = InMessage(message, np.arange(count) * (shape[0] * shape[1]))
    return Pieces(shapes, inside, flat), Pieces(shapes, flat, inside)


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

        from dask_dgpu.kernels.cuda import CudaDevice
        from dask_dgpu.kernels.descriptors import describe

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

    def one_launch(self) -> None:
        """Launch once, for all pieces; wait once."""
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
        self.device.copy_pieces(self.pieces)

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

        from dask_dgpu.kernels.descriptors import COLUMNS
        from dask_dgpu.kernels.pack_cuda import KERNEL, THREADS

        table = cupy.empty(self.words, np.int64)
        table.data.copy_from_host_async(self.tables[piece].ctypes.data, table.nbytes)
        KERNEL((self.tiles[piece],), (THREADS,), (table, table[COLUMNS:], np.int32(1)))

    def _wait(self) -> None:
        import cupy

        cupy.cuda.get_current_stream().synchronize()


@contextmanager
def _no_pool() -> Iterator[None]:
    """Have each allocation be one of CUDA's own, and each release too."""
    import cupy

    with cupy.cuda.using_allocator(None):
        yield


class Bench:
    """The figures of pieces of one size.

    Parameters
    ----------
    report : Report
        Where figures go.
    kib : int
        Of a piece.
    count : int
        Blocks, of ``SIDE`` by ``SIDE`` pieces each.
    repetitions : int
        Of everything timed, after one that is not counted.
    """

    def __init__(self, report: Report, kib: int, count: int, repetitions: int) -> None:
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()
        self.report, self.repetitions = report, repetitions
        self.shape = rows, columns = shape_of(kib)
        self.blocks = [cupy.empty((SIDE * rows, SIDE * columns), DTYPE) for _ in range(count)]
        self.message = cupy.empty(sum(block.size for block in self.blocks), DTYPE)
        self.spare = cupy.empty_like(self.message)
        self.facts: dict[str, Any] = {
            "dtype": DTYPE,
            "pieces": count * SIDE**2,
            "piece_bytes": kib * 1024,
        }
        self.copied = 2 * self.message.nbytes  # read and written

    def run(self, *, whole: bool) -> None:
        """Unpack and pack, by every way or by the last one only, beside the plain copy."""
        unpack, pack = pieces_of(self.message, self.blocks, self.shape)
        for what, pieces in (("unpack", unpack), ("pack", pack)):
            with self.report.guard(what, **self.facts):
                self.ways(what, Ladder(pieces, self.message, self.spare), whole=whole)

    def ways(self, what: str, ladder: Ladder, *, whole: bool) -> None:
        """Write the figures of one direction; shares are of the plain copy's rate."""
        bound = self.seconds(ladder.plain_copy)
        fill = 1 + int(AHEAD / median(bound))
        ahead_bound = self.seconds(partial(ladder.on_device, ladder.issue_plain_copy, fill))
        rungs = {
            "a stream, an allocation, a launch and a wait each": ladder.stream_each,
            "an allocation, a launch and a wait each": ladder.wait_each,
            "an allocation and a launch each": ladder.allocate_each,
            "a launch each, pooled memory": ladder.launch_each,
            "one launch": ladder.one_launch,
        }
        for name, way in rungs.items():
            if whole or name == "one launch":
                self.rung(what, name, way, bound)
        one_launch = partial(ladder.on_device, ladder.issue_one_launch, fill)
        self.rung(what, "one launch, host ahead", one_launch, ahead_bound)
        self.add(f"{what}, plain copy", bound, bound)
        self.add(f"{what}, plain copy, host ahead", ahead_bound, ahead_bound)

    def rung(
        self, what: str, name: str, way: Callable[[], float | None], bound: list[float]
    ) -> None:
        """Write the figure of one way, and whether all elements arrived."""
        self.scramble(what)
        seconds = self.seconds(way)
        wrong = differing(self.message, self.blocks, self.shape)
        self.add(f"{what}, {name}", seconds, bound, elements_differing=wrong)

    def seconds(self, way: Callable[[], float | None]) -> list[float]:
        """Return the seconds of each repetition: what ``way`` returns, or by the clock."""
        import cupy

        found = []
        for _ in range(1 + self.repetitions):
            cupy.cuda.Device().synchronize()
            start = time.perf_counter()
            told = way()
            taken = time.perf_counter() - start
            found.append(taken if told is None else told)
        return found[1:]

    def scramble(self, what: str) -> None:
        """Fill what is read with random numbers and what is written with zeros."""
        import cupy

        size = self.blocks[0].size
        for at, block in enumerate(self.blocks):
            part = self.message[at * size : (at + 1) * size]
            read, written = (part, block) if what == "unpack" else (block, part)
            read[...] = cupy.random.random(read.shape, dtype=DTYPE)
            written.fill(0)

    def add(self, what: str, seconds: list[float], bound: list[float], **more: Any) -> None:
        """Write a figure: the rate, and its share of the bound."""
        taken = median(seconds)
        rate, share = self.copied / taken / 1e9, median(bound) / taken
        self.report.add(what, seconds, **self.facts, gbytes_a_second=rate, share=share, **more)


def main() -> None:
    """Run all and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kib", type=int, nargs="+", default=[512, 64, 4096], help="of a piece; first all ways"
    )
    parser.add_argument("--blocks", type=int, default=16, help=f"of {SIDE**2} pieces each")
    parser.add_argument("--repetitions", type=int, default=5, help="after one to warm up")
    parser.add_argument("--out", type=Path, default=OUT, help="where JSON lines are appended")
    given = parser.parse_args()
    report = Report(given.out, ranks=1)
    for kib in given.kib:
        with report.guard("pieces", piece_bytes=kib * 1024):
            Bench(report, kib, given.blocks, given.repetitions).run(whole=kib == given.kib[0])
    report.print()


if __name__ == "__main__":
    main()
