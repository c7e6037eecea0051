"""What the optimizer must know of a cluster; gathered on the client, once."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dask_dgpu.comm.bootstrap import TRANSPORTS, Transport
from dask_dgpu.environment.gpus import count_gpus
from dask_dgpu.environment.settings import Settings
from dask_dgpu.errors import DgpuError
from graph_opt.model.cost import Machine, machine_of

if TYPE_CHECKING:
    from distributed import Client, Worker

PATIENCE = 30
"""Seconds for the first worker to come: without one, nobody knows what there is."""


RUNTIME_BYTES = 180 * 2**20
"""What a worker's process takes on CPUs for torch and kernels, once it is a rank."""

NEEDED = {"ucx": "ucxx (pip install 'dask-dgpu[ucx]')", "nccl": "torch with CUDA"}
"""What a transport needs."""


@dataclass(frozen=True)
class ClusterFacts:
    """The workers of a cluster, or this process when there is none.

    Parameters
    ----------
    workers : int
        How many there are; 0 without a cluster.
    device : str
        ``"cpu"`` or ``"cuda"``: where gangs compute.
    device_memory : int or None
        Bytes of the device of which a worker can get least, other processes' left out; on
        CPUs of the worker whose memory limit leaves least beside its process: what Dask would
        spill to disk, a gang cannot. ``None`` without any limit.
    one_sided : bool
        Whether ranks can read each other's memory: GPUs of one host with memory in
        RMM pools, or threads.
    transport : {"gloo", "nccl", "ucx"}
        What carries blocks unless a setting says otherwise.
    cores : int
        Blocks that Dask works on at a time, beyond one a worker: those of this process's
        processor when there is no cluster.
    scheduler : str, optional
        The id of the cluster's scheduler.
    protocol : str, optional
        How Dask moves blocks between workers: ``"tcp"``, ``"tls"``, ``"ucx"``, ``"ucxx"``, or
        ``"inproc"`` within one process.
    """

    workers: int
    device: Literal["cpu", "cuda"]
    device_memory: int | None
    one_sided: bool = False
    transport: Transport = "gloo"
    cores: int = 1
    scheduler: str | None = None
    protocol: str = "tcp"

    @property
    def machine(self) -> Machine:
        """Rates of one rank."""
        return machine_of(self.device, self.protocol, self.one_sided)


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
    """The CUDA device of one worker.

    Parameters
    ----------
    memory : int
        Its bytes, but for those that other processes hold.
    host : str
        Where it is.
    pooled : bool
        Whether its memory can be read by other workers of that host.
    """

    memory: int
    host: str
    pooled: bool


def current_client() -> Client | None:
    """Return the client that is current here, in a task that of its worker, if there is one."""
    try:
        from distributed import get_client

        return get_client()
    except (ImportError, ValueError):
        return None


def gather(client: Client | None, settings: Settings) -> ClusterFacts:
    """Ask the workers of a client what they have.

    Raises
    ------
    ValueError
        When some workers have a CUDA device and some have none, or none has although
        ``dgpu.device`` is ``"cuda"``; or when a worker lacks what ``dgpu.comm`` needs.
    DgpuError
        When no worker comes in time.
    """
    if client is None:
        _check_here(settings)
        return ALONE
    try:
        client.wait_for_workers(1, timeout=PATIENCE)
    except TimeoutError as error:
        raise DgpuError(
            f"client is {client!r} without a worker for {PATIENCE} s, it must have one by now: "
            "client.wait_for_workers(1) waits for longer"
        ) from error
    probes: dict[str, WorkerFacts | None] = client.run(_probe, settings.device == "cuda")
    return replace(
        _gather(client, settings, probes),
        scheduler=client.scheduler_info(n_workers=0)["id"],
        protocol=_protocol(probes),
    )


def _check_here(settings: Settings) -> None:
    """Raise if gangs of this process cannot have what is asked for."""
    if settings.device == "cuda" and (find_spec("cupy") is None or not count_gpus()):
        raise ValueError(
            "expected setting dgpu.device to be auto or cpu, got 'cuda': this process has no "
            "CuPy or no CUDA device"
        )
    if settings.comm not in ("auto", *_transports()):
        raise ValueError(
            f"expected setting dgpu.comm to be one of auto, {', '.join(sorted(_transports()))}, "
            f"got {settings.comm!r}: this process lacks {NEEDED[settings.comm]}"
        )


def _protocol(workers: Iterable[str]) -> str:
    """Return the protocol of the workers' addresses, TCP if they have several."""
    protocols = {address.partition("://")[0] for address in workers}
    return protocols.pop() if len(protocols) == 1 else "tcp"


def _gather(
    client: Client, settings: Settings, probes: Mapping[str, WorkerFacts | None]
) -> ClusterFacts:
    found = [facts for facts in probes.values() if facts is not None]
    if settings.device == "cpu" or (settings.device == "auto" and not found):
        if settings.comm == "nccl":
            raise ValueError(
                "expected setting dgpu.comm to be auto, gloo or ucx for workers on CPUs, got 'nccl'"
            )
        transport = _choose_transport(client, settings, "gloo")
        return ClusterFacts(len(probes), "cpu", _least_memory(client), transport=transport)
    if len(found) < len(probes):
        raise ValueError(
            f"setting dgpu.device is {settings.device!r}, but only {len(found)} of "
            f"{len(probes)} workers have a CUDA device; the others allow 'cpu' alone"
        )
    transport = _choose_transport(client, settings, "nccl")
    one_host = len({facts.host for facts in found}) == 1
    one_sided = transport == "nccl" and one_host and all(facts.pooled for facts in found)
    memory = min(facts.memory for facts in found)
    return ClusterFacts(len(probes), "cuda", memory, one_sided, transport)


def _least_memory(client: Client) -> int | None:
    """Return what the workers' memory limits leave for blocks, on the worker with least."""
    found: dict[str, int | None] = client.run(_memory_for_blocks)
    return min((memory for memory in found.values() if memory is not None), default=None)


def _memory_for_blocks(dask_worker: Worker) -> int | None:
    """Return the memory limit of a worker less what its process takes besides blocks.

    Nothing is left if Dask would pause the worker for the process alone.
    """
    manager = dask_worker.memory_manager
    limit = manager.memory_limit
    if not limit:
        return None
    tasks = list(dask_worker.state.tasks.values())
    blocks = sum(ts.nbytes or 0 for ts in tasks if ts.state == "memory")
    own = max(0, dask_worker.monitor.get_process_memory() - blocks)
    own += 0 if "torch" in sys.modules else RUNTIME_BYTES
    return limit - own if own < limit * (manager.memory_pause_fraction or 1) else 0


def _choose_transport(client: Client, settings: Settings, usual: Transport) -> Transport:
    """Return the transport that is asked for, or the usual one, or what can replace it."""
    asked = usual if settings.comm == "auto" else settings.comm
    if asked == "gloo":
        return asked
    probes: dict[str, set[Transport]] = client.run(_transports)
    if settings.comm == "auto":
        have = set(TRANSPORTS).intersection(*probes.values())
        return "ucx" if "nccl" not in have and "ucx" in have else "nccl"
    for worker, transports in probes.items():
        if asked not in transports:
            raise ValueError(
                f"setting dgpu.comm is {asked!r}, but the worker at {worker} lacks {NEEDED[asked]}"
            )
    return asked


def _transports() -> set[Transport]:
    """Return the transports whose packages this worker has; none is imported."""
    found: set[Transport] = {"gloo"}
    if find_spec("ucxx") is not None:
        found.add("ucx")
    torch = find_spec("torch")
    if torch is not None and torch.origin is not None:
        # torch takes seconds to load; this is its file of versions alone
        version = runpy.run_path(str(Path(torch.origin).with_name("version.py")))
        if version["cuda"] is not None:
            found.add("nccl")
    return found


def _probe(asked: bool) -> WorkerFacts | None:
    """What the device of this worker is, ``None`` when it computes on the CPU.

    A dask-cuda worker has a device of its own. On any other worker CUDA is left
    alone unless it is asked for, since several may share one device.
    """
    if not asked and "dask_cuda" not in sys.modules:
        return None
    try:
        from dask_dgpu.comm.nccl.window import host, obtainable, pooled

        return WorkerFacts(obtainable(), host(), pooled())
    except Exception:  # no CuPy, no driver, no device: all mean that there is none
        return None
