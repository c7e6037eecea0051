"""Rates of a device and of a communicator, measured by all ranks at the same time.

Ranks that share a processor, a memory or a link slow each other down here as in a program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from dask_dgpu.comm.common import exchange_now
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels import gemm
from dask_dgpu.kernels.device import Device
from graph_opt.model.cost import Hosts, host_by_rank

REPETITIONS = 2
"""The best counts: whatever disturbs a measurement makes it slower."""

BLOCK_BYTES = {"cpu": 16 << 20, "cuda": 128 << 20}
"""Bytes of a factor, a copy and a message, per kind of device: larger than its caches."""

RUNS = {"cpu": 1, "cuda": 20}
"""Runs in a row of short work: a GPU finishes it in less time than its host waits for it."""

LEAST_SECONDS = {"cpu": 0.01, "cuda": 0.0}
"""Least seconds of local work. Processes take turns on a core for some milliseconds each, so
shorter work would be measured as if each rank had a core and the memory for itself."""

SIDE = {"cpu": 256, "cuda": 4096}
"""Side of square products."""

NARROW = 16
"""Columns of the second factor of a tall product."""

MESSAGES = 10
"""Small exchanges of all ranks, one after the other."""

Array = Any
Figures = dict[str, float]


def products(dtype: str, comm: Comm, device: Device, hosts: Hosts = ()) -> Figures:
    """Return operations per second of products of a dtype: square, tall, with a vector."""
    side = SIDE[device.kind]
    rows = BLOCK_BYTES[device.kind] // (side * np.dtype(dtype).itemsize)
    shapes = {"square": (side, side, side), "tall": (rows, side, NARROW), "vector": (rows, side, 1)}
    rates = {}
    for name, (m, k, n) in shapes.items():
        a, b, out = (_filled(device, shape, dtype) for shape in ((m, k), (k, n), (m, n)))
        runs = 1 if name == "square" else RUNS[device.kind]
        seconds = _local(comm, device, partial(gemm.accumulate, out, a, b), runs)
        rates[f"{dtype}.{name}"] = 2 * m * k * n / seconds
    return rates


def memory(comm: Comm, device: Device, hosts: Hosts = ()) -> Figures:
    """Return bytes per second of a copy, read and written, and the seconds of a small step.

    As most results of a program, the copy is in new memory.
    """
    source = _filled(device, (BLOCK_BYTES[device.kind] // 8,), "float64")  # CuPy copies by elements
    small = [_filled(device, (8, 8), "float64") for _ in range(3)]

    def copy() -> None:
        source.copy()

    def step() -> None:
        gemm.accumulate(*small)
        device.join()

    return {
        "memory_bandwidth": 2 * source.nbytes / _local(comm, device, copy, RUNS[device.kind]),
        "launch_seconds": _best(comm, device, step),
    }


def exchange(comm: Comm, device: Device, hosts: Hosts = ()) -> Figures:
    """Return the seconds of a small exchange of all ranks, and bytes per second that one receives.

    The small exchange comes after some work, as in a program, so it includes the wait for the
    slowest rank. Exchanges one after the other take half of that time.

    On several hosts, the bytes per second are those within a host, which a rank without another
    on its host does not know. Further figures are those between hosts.
    """
    if comm.size == 1:
        return {}
    if len(hosts) < 2:
        everyone = range(comm.size)
        return {"latency": _latency(comm, device), **_within(comm, device, everyone, comm.size)}
    host = host_by_rank(hosts)
    mine = np.flatnonzero(host == host[comm.rank]).tolist()
    others = [rank for rank in range(comm.size) if rank not in mine]
    return {
        "latency": _latency(comm, device),
        **_within(comm, device, mine, max(hosts)),
        "host_bandwidth": len(mine) * _received(comm, device, others, comm.size),
    }


def _within(comm: Comm, device: Device, ranks: Sequence[int], most: int) -> Figures:
    """Return the bytes per second from these ranks, of which this is one, if there are others."""
    rate = _received(comm, device, [rank for rank in ranks if rank != comm.rank], most)
    return {"bandwidth": rate} if len(ranks) > 1 else {}


def _latency(comm: Comm, device: Device) -> float:
    """Return the seconds of a small exchange; 0 is no figure."""
    sent, got = (_filled(device, (comm.size,), "float64") for _ in range(2))
    one_each = [1] * comm.size
    block = _filled(device, (BLOCK_BYTES[device.kind] // 8,), "uint8")

    def steps(exchanges: bool) -> None:
        for _ in range(MESSAGES):
            block.copy()
            device.join()
            if exchanges:
                exchange_now(comm, sent, one_each, got, one_each)

    alone, together = (_best(comm, device, partial(steps, each)) for each in (False, True))
    return max(0.0, together - alone) / MESSAGES


def _received(comm: Comm, device: Device, peers: Sequence[int], most: int) -> float:
    """Return the bytes per second from some ranks, all of which exchange with this one.

    Fewer than ``most`` ranks, the same number on all ranks, exchange with any.
    """
    share = BLOCK_BYTES[device.kind] // most
    whole, out = (_filled(device, (share * len(peers),), "uint8") for _ in range(2))
    counts = [0] * comm.size
    for peer in peers:
        counts[peer] = share

    def blocks() -> None:
        exchange_now(comm, whole, counts, out, counts)

    return sum(counts) / _best(comm, device, blocks, RUNS[device.kind])


def window(comm: Comm, device: Device, hosts: Hosts = ()) -> Figures:
    """Return the seconds of opening and closing memory to all ranks, if that is possible."""
    buffer = _filled(device, (8,), "uint8")
    first = comm.window([buffer])
    if first is None:
        return {}

    def once() -> None:
        with device.transferring():
            opened = comm.window([buffer])
            if opened is not None:
                opened.close().wait()

    first.close().wait()
    return {"window_seconds": _best(comm, device, once)}


PARTS: Mapping[str, Callable[[Comm, Device, Hosts], Figures]] = {
    "memory": memory,
    "exchange": exchange,
    "window": window,
    **{dtype: partial(products, dtype) for dtype in gemm.BLAS},
}
"""The measurements, each short: a gang may have to wait for one.

Arguments are the communicator, the device, and the number of ranks on each host.
"""


def _filled(device: Device, shape: tuple[int, ...], dtype: str) -> Array:
    """Return an array whose memory is there already: a host maps that of zeros on first use.

    All dtypes are filled with the same bytes, which are a normal number in each, so that CuPy
    compiles one kernel.
    """
    array = device.empty(shape, dtype)
    with device.computing():
        array.reshape(-1).view("uint8")[...] = 0x3C
    device.join()
    return array


def _local(comm: Comm, device: Device, work: Callable[[], None], runs: int) -> float:
    """Return the seconds of a run of local work, repeated for some time."""
    return _best(comm, device, work, runs, LEAST_SECONDS[device.kind])


def _best(
    comm: Comm, device: Device, work: Callable[[], None], runs: int = 1, least: float = 0.0
) -> float:
    """Return the mean seconds of a run in the quickest repetition, after one to warm up.

    A repetition has at least so many ``runs``, and takes at least so many seconds.
    """
    times = []
    for _ in range(1 + REPETITIONS):
        comm.barrier()
        device.synchronize()
        begin, done = perf_counter(), 0
        with device.computing():
            while done < runs or perf_counter() - begin < least:
                work()
                done += 1
        device.synchronize()
        times.append((perf_counter() - begin) / done)
    return min(times[1:])
