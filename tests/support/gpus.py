"""GPUs for several processes of pytest-xdist: each has its own, so their gangs do not wait."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

VISIBLE = "CUDA_VISIBLE_DEVICES"


def own(process: str, share: int, devices: Sequence[str]) -> str:
    """Return the devices that a process such as ``"gw3"`` sees, ``share`` of them.

    More processes than shares begin again with the first.
    """
    shares = len(devices) // share
    if shares < 1:
        raise pytest.UsageError(f"expected --gpus of at most {len(devices)}, got {share}")
    first = int(process.removeprefix("gw")) % shares * share
    return ",".join(devices[first : first + share])


def take_own(share: int) -> None:
    """Hide the devices of other processes from this one and its children, before it uses CUDA."""
    process, devices = os.environ.get("PYTEST_XDIST_WORKER"), _visible()
    found = own(process or "gw0", share, devices)
    if process is not None:
        os.environ[VISIBLE] = found


def _visible() -> list[str]:
    if given := os.environ.get(VISIBLE):
        return given.split(",")
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    return list(map(str, range(pynvml.nvmlDeviceGetCount())))
