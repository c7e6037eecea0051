"""The transport of a cluster's gangs: what is installed, what is allowed, and what is best."""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from dask_dgpu.comm.bootstrap import TRANSPORTS, Transport
from dask_dgpu.environment.settings import Settings

ENCRYPTED = ("tls", "wss")
"""Protocols of Dask's that encrypt."""

Missing = Mapping[Transport, str]
"""The transports that a process lacks, and what each one needs."""


def choose_transport(
    workers: Mapping[str, Missing],
    settings: Settings,
    device: Literal["cpu", "cuda"],
    protocol: str,
) -> Transport:
    """Return the transport of the settings, or for ``auto`` the best that is allowed.

    On a cluster with TLS, only the transport ``dask`` needs no permission.
    """
    encrypted, limited = protocol in ENCRYPTED, settings.limits.ports is not None
    if settings.comm != "auto":
        transport = settings.comm
        _check_installed(transport, workers)
    elif device == "cpu":
        transport = "dask" if encrypted or limited else "tcp"
    else:
        have = {*TRANSPORTS}.difference(*workers.values())
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
    missing = missing_transports()
    if settings.comm != "auto" and settings.comm in missing:
        installed = sorted({*TRANSPORTS}.difference(missing))
        raise ValueError(
            f"expected setting dgpu.comm to be one of auto, {', '.join(installed)}, "
            f"got {settings.comm!r}: this process lacks {missing[settings.comm]}"
        )


def _check_installed(transport: Transport, workers: Mapping[str, Missing]) -> None:
    for worker, missing in workers.items():
        if transport in missing:
            raise ValueError(
                "expected setting dgpu.comm to be available on all workers, got "
                f"{transport!r}: the worker at {worker} lacks {missing[transport]}"
            )


def missing_transports() -> Missing:
    """Return the transports that this process lacks, without importing their packages."""
    missing: dict[Transport, str] = {}
    torch = torch_versions()
    if torch is None or torch["cuda"] is None:
        missing["nccl"] = "torch with CUDA"
    if find_spec("ucxx") is None:
        missing["ucx"] = "ucxx (pip install 'dask-dgpu[ucx]')"
    return missing


def torch_versions() -> dict[str, Any] | None:
    """Return the versions in torch's own file, ``None`` without torch: importing takes seconds."""
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        return None
    return runpy.run_path(str(Path(torch.origin).with_name("version.py")))
