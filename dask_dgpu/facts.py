"""What the optimizer must know of a cluster; gathered on the client, once."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

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
        Bytes of the smallest device, ``None`` on a CPU.
    one_sided : bool
        Whether ranks can read each other's memory: GPUs of one host with memory in
        RMM pools, or threads.
    """

    workers: int
    device: Literal["cpu", "cuda"]
    device_memory: int | None
    one_sided: bool = False

    @property
    def machine(self) -> Machine:
        """Rates of one rank."""
        return replace(CUDA if self.device == "cuda" else HOST, one_sided=self.one_sided)

    @property
    def transport(self) -> Literal["gloo", "nccl"]:
        """What carries blocks unless a setting says otherwise."""
        return "nccl" if self.device == "cuda" else "gloo"


ALONE = ClusterFacts(workers=0, device="cpu", device_memory=None, one_sided=True)


@dataclass(frozen=True)
class WorkerFacts:
    """The CUDA device of one worker.

    Parameters
    ----------
    memory : int
        Its bytes.
    host : str
        Where it is.
    pooled : bool
        Whether its memory can be read by other workers of that host.
    """

    memory: int
    host: str
    pooled: bool


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
    probes: dict[str, WorkerFacts | None] = client.run(_probe, settings.device == "cuda")
    found = [facts for facts in probes.values() if facts is not None]
    if settings.device == "cpu" or (settings.device == "auto" and not found):
        return ClusterFacts(len(probes), "cpu", None)
    if len(found) < len(probes):
        raise ValueError(
            f"setting dgpu.device is {settings.device!r}, but only {len(found)} of "
            f"{len(probes)} workers have a CUDA device; the others allow 'cpu' alone"
        )
    one_sided = len({facts.host for facts in found}) == 1 and all(facts.pooled for facts in found)
    return ClusterFacts(len(probes), "cuda", min(facts.memory for facts in found), one_sided)


def _probe(asked: bool) -> WorkerFacts | None:
    """What the device of this worker is, ``None`` when it computes on the CPU.

    A dask-cuda worker has a device of its own. On any other worker CUDA is left
    alone unless it is asked for, since several may share one device.
    """
    if not asked and "dask_cuda" not in sys.modules:
        return None
    try:
        import cupy

        from dask_dgpu.comm.nccl_window import host, pooled

        return WorkerFacts(int(cupy.cuda.runtime.memGetInfo()[1]), host(), pooled())
    except Exception:  # no CuPy, no driver, no device: all mean that there is none
        return None
