"""The cost model: rates of a machine and of its hosts, and predicted times.

Ranks are numbered host by host. So the number of ranks on each host says where each rank is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from math import inf
from typing import Any, NamedTuple

import numpy as np

from graph_opt.model.layout import dtype_named

Shape = tuple[int, int, int]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Hosts = tuple[int, ...]
"""Number of ranks on each host; empty if ranks are on one host, or it is not known where."""

TALL = 128
"""A product with a shorter side than this is tall."""

LOOP_SLOWDOWN = 12.0
"""``einsum`` of blocks multiplies in a loop, so much slower than a matrix product."""

UNRUN = 0.3
"""Cost of a task that the scheduler only reads, as a fraction of one that a worker runs."""


@dataclass(frozen=True)
class ProductRates:
    """Floating-point operations per second in products of one dtype, by shape.

    ``tall`` is for products with a side shorter than ``TALL``, as ``(n, 512) @ (512, 16)``, and
    ``vector`` for those with a side of 1.
    """

    square: float
    tall: float
    vector: float

    def of(self, *shape: int) -> float:
        """Return the rate of a product of shape ``(m, k, n)``."""
        shortest = min(shape)
        if shortest <= 1:
            return self.vector
        return self.tall if shortest < TALL else self.square


@dataclass(frozen=True)
class Machine:
    """Rates of one rank.

    - ``flops``: floating-point operations per second in a large float64 product.
    - ``bandwidth``: bytes per second that one rank receives while all ranks exchange.
    - ``latency``: seconds of the smallest collective.
    - ``memory_bandwidth``: bytes per second of a copy in the rank's memory, read and written.
    - ``ramp``: inner length at which a product reaches half of ``flops``; each panel has a fixed
      cost.
    - ``one_sided``: whether ranks can read each other's memory, without packing, by copy engines.
    - ``window_seconds``: cost of opening and closing memory for such reads, on the host.
    - ``dask_bandwidth``: bytes per second that one worker receives if Dask transfers blocks; by
      default ``bandwidth``.
    - ``products``: rates of products by dtype; those of other dtypes follow from ``flops``.
    - ``task_seconds``: cost of a Dask task in the scheduler, with its share of the messages.
    - ``round_trip_seconds``: from the end of a task to the start of its dependent on another
      worker; 0 without a cluster.
    - ``step_seconds``: cost of a program's step on the host: plan, launch and report it.
    - ``transform_share``: fraction of ``flops`` that a Fourier transform reaches: memory limits
      it.
    - ``hosts``: number of ranks on each host, numbered host by host; empty for one host.
    - ``host_bandwidth``: bytes per second that one host receives from others while all hosts
      exchange; ``None`` if it is not known. ``bandwidth`` is that within a host if it is.
    - ``link_bandwidth``: bytes per second between a host's memory and one device; ``None`` on CPUs.
    - ``measured``: the names of the fields that were measured on this cluster; the others are
      defaults.
    """

    flops: float
    bandwidth: float
    latency: float
    memory_bandwidth: float
    ramp: float = 0.0
    one_sided: bool = False
    window_seconds: float = 0.0
    dask_bandwidth: float | None = None
    products: tuple[tuple[str, ProductRates], ...] = ()
    task_seconds: float = 4e-4
    round_trip_seconds: float = 1e-2
    step_seconds: float = 5e-4
    transform_share: float = 0.1
    hosts: Hosts = ()
    host_bandwidth: float | None = None
    link_bandwidth: float | None = None
    measured: tuple[str, ...] = ()

    @property
    def dask_rate(self) -> float:
        """Bytes per second that one worker receives if Dask transfers blocks."""
        return self.dask_bandwidth or self.bandwidth

    def link_seconds(self, nbytes: float, ranks: int = 1) -> float:
        """Return the seconds in which ranks together copy bytes to their devices or back."""
        return 0.0 if self.link_bandwidth is None else nbytes / (self.link_bandwidth * ranks)

    def spread_over(self, size: int) -> bool:
        """Whether a gang of ``size`` ranks is on several hosts whose links have a known rate."""
        return self.host_bandwidth is not None and len(self.hosts) > 1 and sum(self.hosts) == size

    def two_level(self, size: int) -> bool:
        """Whether sums of ``size`` ranks run within hosts and then between them.

        They do if links between hosts are slower for a rank than those within.
        """
        if self.host_bandwidth is None or not self.spread_over(size):
            return False
        most = max(self.hosts)
        return most > 1 and self.host_bandwidth < most * self.bandwidth

    def rank_rate(self, size: int) -> float:
        """Return bytes per second that one of ``size`` ranks receives, whoever sends them.

        If all ranks of a host receive from other hosts, they share its link.
        """
        if self.host_bandwidth is None or not self.spread_over(size):
            return self.bandwidth
        return min(self.bandwidth, self.host_bandwidth / max(self.hosts))

    def product_rate(self, shape: tuple[int, int, int], dtype: str) -> float:
        """Return the rate of a local product of shape ``(m, k, n)``, operations per second."""
        known = dict(self.products).get(dtype)
        return self.flops if known is None else known.of(*shape)


class Beside(NamedTuple):
    """What a task needs beside its operands and its result.

    ``temporary`` is over the largest block that it reads or makes. ``held`` are the bytes that its
    result keeps allocated, over those of the result: more than 1 for a view of a temporary.
    """

    temporary: float = 0.0
    held: float = 1.0


FIGURES = (
    "bandwidth",
    "latency",
    "memory_bandwidth",
    "dask_bandwidth",
    "task_seconds",
    "round_trip_seconds",
    "step_seconds",
)
"""The figures of a machine that are measured, besides those of products and windows."""

OTHER_FIGURES = ("host_bandwidth", "window_seconds", "link_bandwidth")
"""Figures of several hosts, and of devices; nothing measures links."""

# Orders of magnitude, to choose between plans: four ranks on two cores over loopback, and one
# H200 of eight with NVLink; docs/performance.md has the measurements.
HOST = Machine(
    flops=2.8e10,
    bandwidth=5e8,
    latency=1e-3,
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
    window_seconds=2e-3,
    dask_bandwidth=5e8,
    link_bandwidth=1e10,
)

DASK_BANDWIDTHS: Mapping[str, Mapping[str, float]] = {
    # over TCP the same cores pickle, copy and schedule each block
    "cpu": {"tcp": 1e8, "ucx": 5e8, "inproc": HOST.memory_bandwidth},
    # over TCP each block passes through the host on both sides
    "cuda": {"tcp": 5e8, "ucx": 3e10, "inproc": CUDA.memory_bandwidth},
}
"""``dask_bandwidth`` by device and protocol."""

PROTOCOLS = {"ucx": "ucx", "ucxx": "ucx", "inproc": "inproc"}
"""Dask's protocols that are faster than TCP; TLS and others count as TCP."""


def machine_of(device: str, protocol: str, one_sided: bool = False) -> Machine:
    """Return the rates of one rank on a device, ``"cpu"`` or ``"cuda"``.

    Dask's ``protocol`` between workers is ``"tcp"``, ``"tls"``, ``"ucx"``, ``"ucxx"``, or
    ``"inproc"`` within one process. With ``one_sided`` ranks can read each other's memory.
    """
    rate = DASK_BANDWIDTHS[device][PROTOCOLS.get(protocol, "tcp")]
    machine = CUDA if device == "cuda" else HOST
    return replace(machine, one_sided=one_sided, dask_bandwidth=rate)


def calibrated(machine: Machine, figures: Mapping[str, float]) -> Machine:
    """Return a machine with measured figures instead of its defaults.

    Names are those of fields, or a dtype and a shape of products: ``"float32.tall"``. Figures
    that are not positive and finite are ignored.
    """
    good = {name: value for name, value in figures.items() if 0 < value < inf}
    rates: dict[str, dict[str, float]] = {}
    for name, value in good.items():
        dtype, dot, shape = name.partition(".")
        if dot:
            rates.setdefault(dtype, {})[shape] = value
    shapes = {field.name for field in fields(ProductRates)}
    products = {
        dtype: ProductRates(**measured)
        for dtype, measured in rates.items()
        if measured.keys() == shapes
    }
    known = {*FIGURES, *OTHER_FIGURES}
    values: dict[str, Any] = {name: value for name, value in good.items() if name in known}
    if products:
        values["products"] = tuple(products.items())
    if "float64" in products:
        values["flops"] = products["float64"].square
    return replace(machine, **values, measured=tuple(sorted(values)))


def gang_seconds(machine: Machine, tasks: int, steps: int, *, at_once: bool = False) -> float:
    """Return the cost of a gang besides the work of its steps.

    Those are its ``tasks``, the host's work for each step, and two round trips. A gang that starts
    ``at_once``, on blocks in memory, needs none, and its tasks do not run.
    """
    if at_once:
        return tasks * machine.task_seconds * UNRUN + steps * machine.step_seconds
    seconds = tasks * machine.task_seconds + steps * machine.step_seconds
    return seconds + 2 * machine.round_trip_seconds


def pipelined(compute: float, transfer: float, first: float, steps: int) -> float:
    """Return the seconds of a loop that overlaps each step's compute with the next transfer.

    Only the ``first`` transfer is exposed. From then on the longer of the two counts, and at
    the end the compute of the last of ``steps``.
    """
    last = compute / steps
    return first + max(compute - last, transfer - first) + last


def dask_product_seconds(
    shape: tuple[int, int, int],
    blocks: tuple[int, int, int],
    dtype: str,
    ranks: int,
    machine: Machine,
    *,
    batch: int = 1,
    tasks: int | None = None,
) -> float:
    """Predict plain Dask's time for a ``batch`` of products of ``shape`` ``(m, k, n)``.

    ``blocks`` are the numbers of blocks along the same axes. By default there are a product task
    and an addition task for each triple of blocks. Workers keep one operand and fetch the blocks of
    the other, whichever are fewer bytes. Partial products are written, sent and added, a round trip
    later if there are several for a block.
    """
    m, k, n = shape
    rows, inner, columns = blocks
    itemsize = dtype_named(dtype).itemsize
    block = m // max(1, rows), k // max(1, inner), n // max(1, columns)
    tasks = 2 * rows * inner * columns if tasks is None else tasks
    copies = min(m * k * (min(columns, ranks) - 1), k * n * (min(rows, ranks) - 1))
    partials = m * n * inner
    moved = (copies + partials * (ranks - 1) / ranks) * itemsize
    one = (
        2 * m * k * n / (machine.product_rate(block, dtype) * ranks)
        + moved / (machine.dask_rate * ranks)
        + 2 * partials * itemsize / (machine.memory_bandwidth * ranks)
    )
    waits = machine.round_trip_seconds if inner > 1 else 0.0
    return tasks * machine.task_seconds + batch * one + waits


def dask_rechunk_seconds(
    tasks: int, moved_bytes: float, copied_bytes: float, workers: int, machine: Machine
) -> float:
    """Predict plain Dask's time for a rechunk.

    Over all workers, ``moved_bytes`` change workers if blocks are placed at random, and
    ``copied_bytes`` are written into merged blocks.
    """
    return (
        tasks * machine.task_seconds
        + moved_bytes * (workers - 1) / workers / (machine.dask_rate * workers)
        + 2 * copied_bytes / (machine.memory_bandwidth * workers)
    )


def hosts_of(names: Sequence[str]) -> Hosts:
    """Return the number of ranks on each host, from the host of each rank.

    The result is empty for one host, and if ranks are not numbered host by host.
    """
    runs = [(name, len(list(ranks))) for name, ranks in groupby(names)]
    known = 1 < len(runs) == len({name for name, _ in runs})
    return tuple(ranks for _, ranks in runs) if known else ()


def host_by_rank(hosts: Hosts) -> Ints:
    """Return the host of each rank."""
    return np.repeat(np.arange(len(hosts)), hosts)


def between_hosts(counts: Ints, hosts: Hosts) -> Ints:
    """Return the part of ``counts[sender, receiver]`` that crosses between hosts."""
    host = host_by_rank(hosts)
    return np.where(host[:, None] != host[None, :], counts, 0)


def transfer_seconds(counts: Ints, machine: Machine) -> float:
    """Predict the seconds in which ranks send each other ``counts[sender, receiver]`` bytes.

    On one host the busiest rank counts. On several, the busiest rank within its host and then the
    host with the busiest link.
    """
    if not machine.spread_over(len(counts)):
        return _busiest(counts) / machine.bandwidth
    between, host = between_hosts(counts, machine.hosts), host_by_rank(machine.hosts)
    ways = (np.bincount(host, between.sum(axis=axis)) for axis in (0, 1))
    return _busiest(counts - between) / machine.bandwidth + link_seconds(machine, *ways)


def link_seconds(machine: Machine, *by_host: Any) -> float:
    """Return the seconds of the busiest link, from the bytes that each host gets, or sends."""
    most = max(float(np.max(nbytes, initial=0)) for nbytes in by_host)
    return most / (machine.host_bandwidth or machine.bandwidth)


def _busiest(counts: Ints) -> int:
    """Return the most bytes that a rank sends or receives."""
    return int(np.maximum(counts.sum(axis=1), counts.sum(axis=0)).max(initial=0))
