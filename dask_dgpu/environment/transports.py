"""The transport of a cluster's gangs: what is installed, what is allowed, and what is best."""

from __future__ import annotations

import runpy
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dask_dgpu.comm.bootstrap import TRANSPORTS, Transport
from dask_dgpu.environment.settings import Settings
from dask_dgpu.environment.workers import ask_workers

if TYPE_CHECKING:
    from distributed import Client

ENCRYPTED = ("tls", "wss")
"""Protocols of Dask's that encrypt."""

NEEDED = {
    "nccl": "torch with CUDA",
    "ucx": "ucxx (pip install 'dask-dgpu[ucx]')",
}
"""Requirement of each transport."""


def choose_transport(
    client: Client, settings: Settings, device: Literal["cpu", "cuda"], protocol: str
) -> Transport:
    """Return the transport of the settings, or for ``auto`` the best that is allowed.

    On a cluster with TLS, only the transport ``dask`` needs no permission.
    """
    probes = ask_workers(client, installed_transports)
    encrypted, limited = protocol in ENCRYPTED, settings.limits.ports is not None
    if settings.comm != "auto":
        transport = settings.comm
        _check_installed(transport, probes)
    else:
        have = set(TRANSPORTS).intersection(*probes.values())
        if device == "cpu":
            transport = "dask" if encrypted or limited else "tcp"
        else:
            transport = "ucx" if "ucx" in have and (limited or "nccl" not in have) else "nccl"
    if encrypted and transport != "dask" and not settings.comm_plaintext:
        raise ValueError(
            f"expected setting dgpu.comm.plaintext to be True for the transport {transport!r} on a "
            "cluster with TLS, got False: blocks would travel in plain text"
        )
    if limited and transport in ("tcp", "nccl"):
        raise ValueError(
            f"expected setting dgpu.comm.ports to be null for the transport {transport!r}, which "
            f"picks its ports itself, got {settings.limits.ports}"
        )
    return transport


def check_transport_here(settings: Settings) -> None:
    """Raise if this process lacks the transport of the settings."""
    installed = installed_transports()
    if settings.comm not in ("auto", *installed):
        raise ValueError(
            f"expected setting dgpu.comm to be one of auto, {', '.join(sorted(installed))}, "
            f"got {settings.comm!r}: this process lacks {NEEDED[settings.comm]}"
        )


def _check_installed(transport: Transport, probes: dict[str, set[Transport]]) -> None:
    for worker, transports in probes.items():
        if transport not in transports:
            raise ValueError(
                "expected setting dgpu.comm to be available on all workers, got "
                f"{transport!r}: the worker at {worker} lacks {NEEDED[transport]}"
            )


def installed_transports() -> set[Transport]:
    """Return the transports with installed packages, without importing these."""
    found: set[Transport] = {"dask", "tcp"}
    if find_spec("ucxx") is not None:
        found.add("ucx")
    torch = torch_versions()
    if torch is not None and torch["cuda"] is not None:
        found.add("nccl")
    return found


def torch_versions() -> dict[str, Any] | None:
    """Return the versions in torch's own file, ``None`` without torch: importing takes seconds."""
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        return None
    return runpy.run_path(str(Path(torch.origin).with_name("version.py")))


def missing_transports() -> dict[Transport, str]:
    """Return the transports that this process lacks, and the requirement of each."""
    available = installed_transports()
    return {name: NEEDED[name] for name in TRANSPORTS if name not in available}
