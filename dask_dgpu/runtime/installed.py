"""The versions of packages on the client, the scheduler and the workers of a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from dask_dgpu.errors import DgpuError

if TYPE_CHECKING:
    from distributed import Client

Versions = Mapping[str, str | None]

OWN = "dask_dgpu"

MOST_SHOWN = 3
"""Number of processes that an error names."""

VARIANTS = {
    "cupy": ("cupy", "cupy-cuda12x", "cupy-cuda13x"),
    "rmm": ("rmm", "rmm-cu12", "rmm-cu13"),
    "ucxx": ("ucxx", "ucxx-cu12", "ucxx-cu13"),
}
"""The distributions of packages that pip and conda call differently."""

COMPARED = ("dask", "numpy", "cupy", "torch")
"""Packages whose versions on workers are compared."""

ON_WORKERS = ("cupy", "torch")
"""Packages that a client may lack."""


def check_installed(client: Client) -> None:
    """Raise unless scheduler and workers have the client's version of dask_dgpu.

    Raises
    ------
    DgpuError
        If one has another version, or none.
    """
    # Dask's own functions find them, so processes without dask_dgpu answer too
    scheduler: Any = client.scheduler
    versions: Any = client.get_versions(packages=[OWN])
    _check({f"scheduler {scheduler.address}": versions["scheduler"], **versions["workers"]})


def check_scheduler(client: Client) -> None:
    """Raise :class:`DgpuError` unless the scheduler has the client's version of dask_dgpu."""
    scheduler: Any = client.scheduler
    answer = client.sync(scheduler.versions, packages=[OWN])
    _check({f"scheduler {scheduler.address}": answer})


def _check(answers: Mapping[str, Any]) -> None:
    from distributed.versions import get_versions

    own = get_versions(packages=[OWN])["packages"][OWN]
    wrong = [
        f"{each['packages'][OWN] or 'none'} on {place}"
        for place, each in answers.items()
        if isinstance(each, dict) and each["packages"][OWN] != own  # a lost worker has no answer
    ]
    if wrong:
        more = f" and {len(wrong) - MOST_SHOWN} more" if len(wrong) > MOST_SHOWN else ""
        raise DgpuError(
            f"expected {OWN} {own} on the scheduler and all workers, as on the client, "
            f"got {', '.join(wrong[:MOST_SHOWN])}{more}"
        )


def installed_here() -> dict[str, str | None]:
    """Return the version of each package in this process, without importing it."""
    return {name: next(iter(installed(name).values()), None) for name in COMPARED}


def installed(package: str) -> dict[str, str]:
    """Return the version of each installed distribution of a package, without importing it."""
    versions = {}
    for each in VARIANTS.get(package, (package,)):
        with suppress(PackageNotFoundError):
            versions[each] = version(each)
    return versions


def differences(workers: Mapping[str, Versions]) -> dict[str, str]:
    """Return which versions of workers differ, by worker.

    Expected are those of this process, and for CuPy and torch those of most workers.
    """
    wanted = installed_here()
    for name in ON_WORKERS if workers else ():
        ((wanted[name], _),) = Counter(worker[name] for worker in workers.values()).most_common(1)
    differing = {}
    for worker, versions in workers.items():
        wrong = [
            f"{name} {versions[name] or 'not installed'}, expected {number or 'none'}"
            for name, number in wanted.items()
            if versions[name] != number
        ]
        if wrong:
            differing[worker] = f"has {' and '.join(wrong)}"
    return differing
