"""Facts about a cluster for the optimizer, gathered by the client once, and its free memory."""

from __future__ import annotations

import os
import platform
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dask_dgpu.arguments import check_client
from dask_dgpu.comm.bootstrap import Transport
from dask_dgpu.environment.gpus import count_gpus
from dask_dgpu.environment.settings import Settings
from dask_dgpu.environment.transports import (
    Missing,
    check_transport_here,
    choose_transport,
    missing_transports,
)
from dask_dgpu.environment.workers import ask_workers, await_worker
from dask_dgpu.runtime.program import Limits
from graph_opt.model.cost import Hosts, Machine, calibrated, hosts_of, machine_of

if TYPE_CHECKING:
    from distributed import Client, Worker
    from distributed.scheduler import Scheduler

RUNTIME_BYTES = 180 * 2**20
"""Memory for connections, numba and its kernels in the process of a rank on CPUs."""

RECORDED_FRACTION = 1 / 8
"""Most of the usable memory for recordings, which plans do not count: the margin has it."""


@dataclass(frozen=True)
class ClusterFacts:
    """The workers of a cluster, or this process without a cluster.

    ``device_memory`` are bytes for blocks on the worker with the least: of its device, without the
    memory of other processes; on CPUs of its memory limit, without the memory of its process. They
    are rounded down. A gang cannot spill to disk. ``None`` means no limit.
    """

    workers: int  # 0 without a cluster
    device: Literal["cpu", "cuda"]
    device_memory: int | None
    one_sided: bool = False  # ranks can read each other's memory: GPUs of one host, or threads
    transport: Transport = "tcp"
    cores: int = 1  # blocks that Dask computes at a time
    scheduler: str | None = None
    protocol: str = "tcp"  # of Dask's own transfers: tcp, tls, ucx, ucxx, or inproc
    hardware: str = ""  # processors or devices of the workers
    figures: tuple[tuple[str, float], ...] = ()  # measured rates, by name
    hosts: Hosts = ()  # workers on each host; empty for one host
    threads: int = 1  # blocks that a worker on CPUs computes at a time in a gang
    machine: Machine = field(init=False)  # the rates of one rank
    kind: str = field(init=False)  # what measured rates hold for

    def __post_init__(self) -> None:
        machine = machine_of(self.device, self.protocol, self.one_sided)
        if not self.workers:  # threads wait for no scheduler
            machine = replace(machine, round_trip_seconds=0.0)
        machine = calibrated(machine, dict(self.figures))
        object.__setattr__(self, "machine", replace(machine, hosts=self.hosts))
        on_hosts = f", hosts of {self.hosts} workers" if self.hosts else ""
        kind = f"{self.hardware}, {self.device}, {self.transport}, {self.protocol}{on_hosts}"
        object.__setattr__(self, "kind", kind)


ALONE = ClusterFacts(
    workers=0,
    device="cpu",
    device_memory=None,
    one_sided=True,
    cores=os.cpu_count() or 1,
    protocol="inproc",
)


@dataclass(frozen=True)
class WorkerFacts:
    """One worker, which computes on its CUDA device or on the CPU."""

    device: Literal["cpu", "cuda"]
    memory: int | None  # bytes for blocks, without those of other processes; None for no limit
    hardware: str
    missing: Missing
    host: str = ""  # of a CUDA device
    pooled: bool = False  # whether other workers of that host can read the device's memory


def current_client() -> Client | None:
    """Return the current client, within a task that of its worker; ``None`` without one."""
    try:
        from distributed import get_client

        return get_client()
    except (ImportError, ValueError):
        return None


def chosen_client(client: Client | None) -> Client | None:
    """Return this client, or the current one; raise unless it is connected and synchronous."""
    chosen = current_client() if client is None else client
    if chosen is not None:
        check_client("client", chosen)
    return chosen


def gather(client: Client | None, settings: Settings) -> ClusterFacts:
    """Return the facts about the workers of a client, or about this process.

    Raises
    ------
    ValueError
        If only some workers have a CUDA device, or none has one and ``dgpu.device`` is
        ``"cuda"``, or a worker lacks the transport of ``dgpu.comm``.
    DgpuError
        If no worker starts in time.
    """
    if client is None:
        _check_here(settings)
        return ALONE
    await_worker(client)
    probes = ask_workers(client, probe, settings.device)
    probed, protocol = list(probes.values()), _protocol(probes)
    device = _device(probed, settings)
    missing = {worker: each.missing for worker, each in probes.items()}
    transport = choose_transport(missing, settings, device, protocol)
    readable = len({each.host for each in probed}) == 1 and all(each.pooled for each in probed)
    memory = min((each.memory for each in probed if each.memory is not None), default=None)
    scheduler, threads = client.run_on_scheduler(_scheduler)
    return ClusterFacts(
        workers=len(probed),
        device=device,
        device_memory=memory and rounded(memory),
        one_sided=transport == "nccl" and readable,
        transport=transport,
        scheduler=scheduler,
        protocol=protocol,
        hardware=_together(each.hardware for each in probed),
        hosts=_hosts(probes),
        threads=threads if device == "cpu" else 1,
    )


def _scheduler(dask_scheduler: Scheduler) -> tuple[str, int]:
    """Return the scheduler's id, and most threads of a worker."""
    threads = max((worker.nthreads for worker in dask_scheduler.workers.values()), default=1)
    return dask_scheduler.id, threads


def rounded(memory: int, bits: int = 5) -> int:
    """Round bytes down to one of few values: to so many significant bits.

    The memory of idle workers changes a little from one ``enable`` to the next, and plans depend on
    it: structures that are known would not be.
    """
    rest = max(0, memory.bit_length() - bits)
    return memory >> rest << rest


def memory_of(facts: ClusterFacts, settings: Settings) -> int | None:
    """Return the bytes of a device, ``None`` if nobody knows."""
    return facts.device_memory if settings.memory_limit is None else settings.memory_limit


def usable(facts: ClusterFacts, settings: Settings) -> float | None:
    """Return the bytes of a device that may be used, ``None`` for no limit."""
    memory = memory_of(facts, settings)
    usable = None if memory is None else memory * (1 - settings.memory_safety_margin)
    bounds = [bound for bound in (usable, settings.memory_cap) if bound is not None]
    return min(bounds, default=None)


def limits_of(facts: ClusterFacts, settings: Settings) -> Limits:
    """Return the limits of a gang, with those of its recordings by the memory of a device.

    The free memory of a machine changes, so they are a power of two: equal programs stay equal.
    """
    limits, most = settings.limits, usable(facts, settings)
    if most is None:
        return limits
    power = rounded(max(1, int(RECORDED_FRACTION * most)), bits=1)
    return replace(limits, kept_recordings=min(limits.kept_recordings, power))


def _check_here(settings: Settings) -> None:
    """Raise if this process lacks the device or the transport of the settings."""
    if settings.device == "cuda" and (find_spec("cupy") is None or not count_gpus()):
        raise ValueError(
            "expected setting dgpu.device to be auto or cpu, got 'cuda': this process has no "
            "CuPy or no CUDA device"
        )
    check_transport_here(settings)


def _protocol(workers: Iterable[str]) -> str:
    """Return the protocol of the workers' addresses, TCP if it is not the same for all."""
    protocols = {address.partition("://")[0] for address in workers}
    return protocols.pop() if len(protocols) == 1 else "tcp"


def _hosts(workers: Iterable[str]) -> Hosts:
    """Return the number of workers on each host, by their addresses; empty for one host."""
    from dask_dgpu.runtime.scheduler.run import host_in

    with suppress(ValueError):  # an address without a host
        return hosts_of(sorted(map(host_in, workers)))
    return ()


def _device(workers: Sequence[WorkerFacts], settings: Settings) -> Literal["cpu", "cuda"]:
    """Return the device of all workers; raise if it differs, or cannot use the transport."""
    gpus = sum(worker.device == "cuda" for worker in workers)
    if settings.device != "cuda" and not gpus:
        if settings.comm == "nccl":
            raise ValueError(
                "expected setting dgpu.comm to be auto, dask, tcp or ucx for workers on CPUs, "
                "got 'nccl'"
            )
        return "cpu"
    if gpus < len(workers):
        raise ValueError(
            f"expected setting dgpu.device to be 'cpu', got {settings.device!r}: only "
            f"{gpus} of {len(workers)} workers have a CUDA device"
        )
    if settings.comm in ("dask", "tcp"):
        raise ValueError(
            "expected setting dgpu.comm to be auto, nccl or ucx for workers on GPUs, "
            f"got {settings.comm!r}"
        )
    return "cuda"


def memory_for_blocks(dask_worker: Worker) -> int | None:
    """Return the memory at which Dask pauses a worker, minus that of its process without blocks.

    Without a threshold for pausing it is the worker's memory limit. A paused worker stages no
    blocks, and staged ones are not spilled.
    """
    manager = dask_worker.memory_manager
    if not manager.memory_limit:
        return None
    limit = int(manager.memory_limit * (manager.memory_pause_fraction or 1))
    tasks = list(dask_worker.state.tasks.values())
    blocks = sum(ts.nbytes or 0 for ts in tasks if ts.state == "memory")
    own = max(0, dask_worker.monitor.get_process_memory() - blocks)
    own += 0 if "numba" in sys.modules else RUNTIME_BYTES
    return max(0, limit - own)


def _together(found: Iterable[str]) -> str:
    """Return the hardware of all workers in a few words."""
    return ", ".join(f"{count} x {name}" for name, count in sorted(Counter(found).items()))


def _hardware(dask_worker: Worker) -> str:
    """Return the device of a dask-cuda worker; the processor and threads of another."""
    if "dask_cuda" in sys.modules:
        with suppress(Exception):  # without CuPy, driver or device
            import cupy

            return str(cupy.cuda.runtime.getDeviceProperties(0)["name"].decode())
    return f"{_processor()} ({os.cpu_count()} cores, {dask_worker.state.nthreads} threads)"


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def probe(device: Literal["auto", "cpu", "cuda"], dask_worker: Worker) -> WorkerFacts:
    """Return the facts about this worker.

    A dask-cuda worker has its own device. Other workers may share one, so they use CUDA
    only if the setting ``device`` says so.
    """
    same: dict[str, Any] = {"hardware": _hardware(dask_worker), "missing": missing_transports()}
    if device == "cuda" or (device == "auto" and "dask_cuda" in sys.modules):
        with suppress(Exception):  # without CuPy, driver or device there is none
            from dask_dgpu.comm.nccl.window import host, obtainable, pooled

            return WorkerFacts("cuda", obtainable(), host=host(), pooled=pooled(), **same)
    return WorkerFacts("cpu", memory_for_blocks(dask_worker), **same)
