"""Compilation of generated kernels by NVRTC, and their launches through the driver.

CuPy compiles with ``-ftz=true``, which flushes subnormal numbers to zero, and adds the option after
all others. So the compiler is called here. A product and a sum are not contracted to one rounding
(``-fmad=false``): results are NumPy's, and kernels that read memory are as fast. The host's workers
share the code on disk.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import cupy
from cupy.cuda import compiler, driver

from dask_dgpu.kernels.fused.kernel import Entry, Launch, Packing

OPTIONS = ("-std=c++17", "-fmad=false", "-w")
MOST_KERNELS = 1024

END, BUFFER, SIZE = 0, 1, 2
"""``CU_LAUNCH_PARAM_END`` and so on: arguments in a buffer, and the bytes of these."""

ARGUMENT_BYTES = 4096


@lru_cache(maxsize=MOST_KERNELS)
def compiled(source: str, name: str) -> Any:
    """Return a kernel of some source for the current device."""
    file = _file(source, cupy.cuda.Device().compute_capability)
    return cupy.RawModule(path=str(file)).get_function(name)


def _file(source: str, arch: str) -> Path:
    """Return the file of the code; compile it unless some process of this host has."""
    version = cupy.cuda.nvrtc.getVersion()
    digest = hashlib.sha256(repr((source, arch, version, OPTIONS)).encode()).hexdigest()
    folder = Path(os.environ.get("CUPY_CACHE_DIR", Path.home() / ".cupy" / "kernel_cache"))
    path = folder / f"dgpu_{digest}.cubin"
    if not path.exists():
        code, _ = compiler.compile_using_nvrtc(source, OPTIONS, arch)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(code)
        Path(file.name).replace(path)
    return path


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


class Kernel(NamedTuple):
    """A kernel of the current device, for blocks of one kind; ``first`` of the arrays it gets."""

    function: Any  # keeps the module loaded
    address: int
    entry: Entry
    packing: Packing
    first: int

    def launch(self, addresses: Sequence[int], blocks: int, stream: int) -> None:
        """Launch the kernel for some blocks; the addresses are of one array after the other."""
        into, packing, entry = ARGUMENTS, self.packing, self.entry
        packing.write(into.buffer, addresses[self.first :] if self.first else addresses)
        into.size.value = packing.packer.size
        driver.launchKernel(
            *(self.address, *entry.grid, blocks, entry.threads, 1, 1, 0, stream, 0, into.extra)
        )


class Kernels:
    """The kernels of a launch, one after the other, for one block or many."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self._compiled: dict[int, list[Kernel]] = {}  # by the most blocks

    def call(self, arrays: Sequence[Sequence[int]], stream: int) -> None:
        """Launch the kernels, given the addresses of each array of each block."""
        blocks = len(arrays[0])
        most = 1 if blocks == 1 else self.launch.most
        if most not in self._compiled:
            self._compiled[most] = [self._kernel(entry, most) for entry in self.launch.entries]
        unused = [0] * (most - blocks)
        addresses = [address for array in arrays for address in (*array, *unused)]
        for kernel in self._compiled[most]:
            kernel.launch(addresses, blocks, stream)

    def _kernel(self, entry: Entry, most: int) -> Kernel:
        source, suffix = (self.launch.one, "") if most == 1 else (self.launch.many, "_many")
        function = compiled(source, entry.name + suffix).kernel
        packing = Packing.of(len(entry.arrays) * most, [*entry.numbers.values()])
        return Kernel(function, int(function.ptr), entry, packing, entry.first * most)
