"""What the optimizer must know of a cluster; gathered on the client, once."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dask_dgpu.settings import Settings
from graph_opt.cost import CUDA, HOST, Machine

if TYPE_CHECKING:
    from distributed import Client


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
        Bytes of the smallest device, or on CPUs of the worker with the lowest limit:
        what Dask would spill to disk, a gang cannot. ``None`` without any limit.
    """

    workers: int
    device: Literal["cpu", "cuda"]
    device_memory: int | None

    @property
    def machine(self) -> Machine:
        """Rates of one rank."""
        return CUDA if self.device == "cuda" else HOST

    @property
    def transport(self) -> Literal["gloo", "nccl"]:
        """What carries blocks unless a setting says otherwise."""
        return "nccl" if self.device == "cuda" else "gloo"


ALONE = ClusterFacts(workers=0, device="cpu", device_memory=None)


def gather(client: Client | None, settings: Settings) -> ClusterFacts:
    """Ask the workers of a client what they have.

    Raises
    ------
    ValueError
        When some workers have a CUDA device and some have none, or none has although
        ``dgpu.device`` is ``"cuda"``.
    """
    if client is None:
        return ALONE
    probes: dict[str, Any] = client.run(_probe, settings.device == "cuda")
    memories = [memory for memory in probes.values() if memory is not None]
    if settings.device == "cpu" or (settings.device == "auto" and not memories):
        return ClusterFacts(len(probes), "cpu", _lowest_limit(client))
    if len(memories) < len(probes):
        raise ValueError(
            f"setting dgpu.device is {settings.device!r}, but only {len(memories)} of "
            f"{len(probes)} workers have a CUDA device; the others allow 'cpu' alone"
        )
    return ClusterFacts(len(probes), "cuda", min(memories))


def _lowest_limit(client: Client) -> int | None:
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    return min(
        (worker["memory_limit"] for worker in workers if worker["memory_limit"]), default=None
    )


def _probe(asked: bool) -> int | None:
    """Bytes of the device of this worker, ``None`` when it computes on the CPU.

    A dask-cuda worker has a device of its own. On any other worker CUDA is left
    alone unless it is asked for, since several may share one device.
    """
    if not asked and "dask_cuda" not in sys.modules:
        return None
    try:
        import cupy

        return int(cupy.cuda.runtime.memGetInfo()[1])
    except Exception:  # no CuPy, no driver, no device: all mean that there is none
        return None
