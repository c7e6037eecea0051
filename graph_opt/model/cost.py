"""What things cost: a machine in five numbers, and times predicted from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Machine:
    """Rates of one rank.

    Parameters
    ----------
    flops : float
        Floating-point operations a second in a large float64 product.
    bandwidth : float
        Bytes a second that one rank receives while all ranks exchange.
    latency : float
        Seconds that one collective takes however small it is.
    memory_bandwidth : float
        Bytes a second of a copy within the rank's memory, read and written.
    ramp : float, optional
        How deep a product must be to reach half of ``flops``: each panel begins
        and ends with work of its own.
    one_sided : bool, optional
        Whether ranks can read each other's memory, without packing and by hardware
        that does not compute.
    dask_bandwidth : float, optional
        Bytes a second that one worker receives from others when Dask itself moves
        blocks; by default ``bandwidth``.
    """

    flops: float
    bandwidth: float
    latency: float
    memory_bandwidth: float
    ramp: float = 0.0
    one_sided: bool = False
    dask_bandwidth: float | None = None


# Two cores shared by four ranks over loopback, and one H200 of eight under NVLink:
# orders of magnitude that choose between plans; docs/performance.md has the measurements.
HOST = Machine(
    flops=2.8e10,
    bandwidth=5e8,
    latency=1e-2,
    memory_bandwidth=4e9,
    ramp=16,
    dask_bandwidth=1e8,
)
CUDA = Machine(
    flops=5.0e13,
    bandwidth=3e11,
    latency=1e-4,
    memory_bandwidth=3.9e12,
    ramp=400,
    dask_bandwidth=5e8,
)

DASK_BANDWIDTHS: Mapping[str, Mapping[str, float]] = {
    # over TCP each block is pickled, copied and scheduled on the same cores
    "cpu": {"tcp": 1e8, "ucx": 5e8, "inproc": HOST.memory_bandwidth},
    # over TCP each block passes through the host on both sides
    "cuda": {"tcp": 5e8, "ucx": 3e10, "inproc": CUDA.memory_bandwidth},
}
"""Bytes a second that one worker receives when Dask moves blocks, by device and protocol."""

PROTOCOLS = {"ucx": "ucx", "ucxx": "ucx", "inproc": "inproc"}
"""Protocols of Dask that are quicker than TCP, and their rates; TLS and others count as TCP."""

TASK_SECONDS = 4e-4
"""What one Dask task costs the scheduler, its share of the messages included."""

TRANSFORM_SHARE = 0.1
"""Share of a machine's rate in products that a Fourier transform reaches: it waits for memory."""

ROUND_TRIP_SECONDS = 1e-2
"""From the end of one task to the start of another that waited for it on another worker."""

GANG_SECONDS = 2 * ROUND_TRIP_SECONDS
"""What forming a gang costs beyond its tasks."""


STEP_SECONDS = 5e-4
"""What each step of a program costs the host: it is planned, launched and reported."""


def machine_of(device: str, protocol: str, one_sided: bool = False) -> Machine:
    """Return the rates of one rank.

    Parameters
    ----------
    device : {"cpu", "cuda"}
        Where gangs compute.
    protocol : str
        How Dask moves blocks between workers: ``"tcp"``, ``"tls"``, ``"ucx"``, ``"ucxx"``, or
        ``"inproc"`` within one process.
    one_sided : bool, optional
        Whether ranks can read each other's memory.
    """
    rate = DASK_BANDWIDTHS[device][PROTOCOLS.get(protocol, "tcp")]
    machine = CUDA if device == "cuda" else HOST
    return replace(machine, one_sided=one_sided, dask_bandwidth=rate)


def pipelined(compute: float, transfer: float, first: float, steps: int) -> float:
    """Return the seconds of a loop whose next transfer hides behind its compute.

    Only the ``first`` part of the transfer is exposed; after it the longer of the
    two sets the pace, up to the last of ``steps``.
    """
    last = compute / steps
    return first + max(compute - last, transfer - first) + last


def dask_product_seconds(
    shape: tuple[int, int, int],
    blocks: tuple[int, int, int],
    itemsize: int,
    ranks: int,
    machine: Machine,
) -> float:
    """Predict plain Dask's time for a product of ``(m, k, n)`` in blocks of the same order.

    One product and one addition task for each triple of blocks. A product runs where one
    of its operands is, and a worker keeps the other for later products. Partial products
    are written, sent and added.
    """
    m, k, n = shape
    rows, inner, columns = blocks
    tasks = rows * inner * columns
    copies = (m * k * min(columns, ranks) + k * n * min(rows, ranks)) / 2
    partials = m * n * inner
    moved = (copies + partials) * itemsize * (ranks - 1) / ranks
    return (
        2 * tasks * TASK_SECONDS
        + 2 * m * k * n / (machine.flops * ranks)
        + moved / ((machine.dask_bandwidth or machine.bandwidth) * ranks)
        + 2 * partials * itemsize / (machine.memory_bandwidth * ranks)
    )


def dask_rechunk_seconds(
    tasks: int, moved_bytes: float, copied_bytes: float, workers: int, machine: Machine
) -> float:
    """Predict plain Dask's time for a rechunk.

    ``moved_bytes`` are those that change workers if blocks have no place of their
    own, ``copied_bytes`` those that are written into merged blocks; all workers together.
    """
    bandwidth = machine.dask_bandwidth or machine.bandwidth
    return (
        tasks * TASK_SECONDS
        + moved_bytes * (workers - 1) / workers / (bandwidth * workers)
        + 2 * copied_bytes / (machine.memory_bandwidth * workers)
    )
