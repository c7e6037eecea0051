"""Launches of generated kernels through the driver, with arguments that are packed at once."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cupy
from cupy.cuda import driver

from dask_dgpu.kernels.fused.compile import kernel
from dask_dgpu.kernels.fused.kernel import THREADS, Launch
from dask_dgpu.kernels.fused.packing import Packing, many_source, most_blocks, one_source

END, BUFFER, SIZE = 0, 1, 2
"""``CU_LAUNCH_PARAM_END`` and so on: arguments in a buffer, and the bytes of these."""

ARGUMENT_BYTES = 4096


class Arguments(threading.local):
    """Where a thread writes the arguments of a launch, which the driver copies."""

    def __init__(self) -> None:
        cupy.cuda.runtime.free(0)  # so that a new thread has the device's context
        self.buffer = ctypes.create_string_buffer(ARGUMENT_BYTES)
        self.size = ctypes.c_size_t()
        places = ctypes.addressof(self.buffer), ctypes.addressof(self.size)
        self._extra = (ctypes.c_void_p * 5)(BUFFER, places[0], SIZE, places[1], END)
        self.extra = ctypes.addressof(self._extra)


ARGUMENTS = Arguments()


@dataclass(frozen=True)
class Kernel:
    """A kernel of the current device, for blocks of one kind; ``first`` of the arrays it gets."""

    function: Any  # keeps the module loaded
    grid: tuple[int, int]
    threads: int
    packing: Packing
    first: int

    @cached_property
    def address(self) -> int:
        """The driver's handle."""
        return int(self.function.ptr)

    def launch(self, addresses: Sequence[int], blocks: int, stream: int) -> None:
        """Launch the kernel for some blocks; the addresses are of one array after the other."""
        into, packing = ARGUMENTS, self.packing
        packing.write(into.buffer, addresses[self.first :] if self.first else addresses)
        into.size.value = packing.packer.size
        driver.launchKernel(
            *(self.address, *self.grid, blocks, self.threads, 1, 1, 0, stream, 0, into.extra)
        )


@dataclass(frozen=True)
class Kernels:
    """The kernels of a launch, one after the other, for one block or many."""

    launch: Launch

    @property
    def most(self) -> int:
        """The most blocks of one call."""
        return most_blocks(self.launch.arrays)

    @cached_property
    def one(self) -> tuple[Kernel, ...]:
        """The kernels for one block."""
        return self._kernels(one_source(self.launch), "", 1)

    @cached_property
    def many(self) -> tuple[Kernel, ...]:
        """The kernels for up to ``most`` blocks."""
        return self._kernels(many_source(self.launch), "_many", self.most)

    def call(self, arrays: Sequence[Sequence[int]], stream: int) -> None:
        """Launch the kernels, given the addresses of each array of each block."""
        blocks = len(arrays[0])
        if blocks == 1:
            kernels, addresses = self.one, [address for (address,) in arrays]
        else:
            kernels, unused = self.many, [0] * (self.most - blocks)
            addresses = [address for each in arrays for address in (*each, *unused)]
        for each in kernels:
            each.launch(addresses, blocks, stream)

    def _kernels(self, source: str, suffix: str, most: int) -> tuple[Kernel, ...]:
        launch, fold = self.launch, self.launch.fold
        read = len(launch.operands)
        found = [(launch.entry, launch.grid, launch.threads, launch.numbers, 0)]
        if fold is not None:
            found.append((fold.entry, fold.grid, THREADS, fold.scalars, read))
        return tuple(
            Kernel(
                kernel(source, entry.name + suffix).kernel,
                (grid[0], grid[1] if len(grid) > 1 else 1),
                threads,
                Packing.of((launch.arrays - first) * most, numbers),
                first * most,
            )
            for entry, grid, threads, numbers, first in found
        )
