"""Versions, devices, transports and settings of this process, for reports of problems."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import version
from typing import TextIO

import dask
from dask.system import CPU_COUNT
from dask.utils import format_bytes

from dask_dgpu.arguments import shown
from dask_dgpu.comm.bootstrap import TRANSPORTS
from dask_dgpu.environment.gpus import read_driver, read_memory, read_models, visible_gpus
from dask_dgpu.environment.settings import effective, read
from dask_dgpu.environment.transports import missing_transports, torch_versions
from dask_dgpu.optimizer import enabled_optimizer
from dask_dgpu.runtime.installed import installed

PACKAGES = (
    *("dask-dgpu", "dask", "distributed", "dask-cuda", "numpy", "scipy", "numba"),
    *("torch", "cupy", "rmm", "ucxx", "nvidia-ml-py"),
)


def show_versions(file: TextIO | None = None) -> None:
    """Print versions, devices, transports and settings of this process.

    Parameters
    ----------
    file : file object, optional
        Where to print; by default the standard output.

    See Also
    --------
    check_health : Check the workers of a cluster.

    Notes
    -----
    ``python -m dask_dgpu`` prints the same. It reads package metadata and asks the driver with
    NVML, so it works without a GPU and creates no CUDA context. Include its output when you
    report a problem.

    Examples
    --------
    >>> import dask_dgpu as dgpu
    >>> dgpu.show_versions()  # doctest: +ELLIPSIS
    dask_dgpu ...
    <BLANKLINE>
    packages
    ...
    """
    sections = {
        "packages": packages(),
        "devices": devices(),
        "transports": transports(),
        "settings": settings(),
    }
    system = f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}"
    lines = [f"dask_dgpu {version('dask-dgpu')} on {system}"]
    for title, values in sections.items():
        width = max(map(len, values))
        lines += ["", title, *(f"  {name:{width}}  {value}" for name, value in values.items())]
    print("\n".join(lines), file=sys.stdout if file is None else file)


def packages() -> dict[str, str]:
    """Return the version of each package, without importing it."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        present = [
            number if each == name else f"{number} ({each})"
            for each, number in installed(name).items()
        ]
        versions[name] = " and ".join(present) or "not installed"
    return versions


def devices() -> dict[str, str]:
    """Return the processor and the GPUs of this process, with their memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    devices = {"CPU": f"{CPU_COUNT} cores, {format_bytes(memory)} of memory"}
    try:
        devices["driver"] = read_driver()
    except Exception as error:  # no bindings, no library or no driver
        return devices | {"GPU": f"none ({_cause(error)})"}
    gpus = visible_gpus()
    if not gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return devices | {"GPU": f"none (CUDA_VISIBLE_DEVICES is {visible!r})"}
    models, memories = read_models(gpus), {each.name: each for each in read_memory(gpus)}
    for gpu in gpus:
        room = "memory unknown"
        if gpu in memories:
            free, total = memories[gpu].free, memories[gpu].total
            room = f"{format_bytes(free)} of {format_bytes(total)} free"
        devices[f"GPU {gpu}"] = f"{models.get(gpu, 'model unknown')}, {room}"
    return devices


def _cause(error: Exception) -> str:
    if isinstance(error, ImportError):
        return "NVML's bindings are not installed: pip install nvidia-ml-py"
    return f"{type(error).__name__}: {error}"


def transports() -> dict[str, str]:
    """Return for each transport whether this process has its packages."""
    missing = missing_transports()
    transports: dict[str, str] = {}
    for name in TRANSPORTS:
        transports[name] = f"needs {missing[name]}" if name in missing else "available"
    torch = torch_versions()
    if "nccl" not in missing and torch is not None:
        transports["nccl"] += f", torch with CUDA {torch['cuda']}"
    return transports


def settings() -> dict[str, str]:
    """Return the settings, whether dask_dgpu is enabled, and any setting that is not allowed."""
    optimizer = enabled_optimizer()
    settings = {"enabled": "no"}
    if optimizer is not None:
        facts = optimizer.facts
        workers = f"{facts.workers} workers" if facts.workers else "this process"
        settings["enabled"] = (
            f"on {workers}, device {facts.device}, transport {optimizer.transport}"
        )
    settings["array.backend"] = shown(dask.config.get("array.backend", "numpy"))
    for name, (value, default) in effective().items():
        settings[name] = f"{value}" if default else f"{value} (not the default)"
    try:
        read()
    except ValueError as error:
        settings["error"] = str(error)
    return settings
