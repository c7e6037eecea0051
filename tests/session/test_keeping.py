"""Workers that keep freed memory: their environment, and that arrays get no new memory."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import dask
import dask.array as da
import pytest
from distributed import Client, LocalCluster, Nanny, wait

import dask_dgpu as dgpu
from dask_dgpu.session.keeping import FRACTION, THRESHOLD, KeepingNanny, variables
from tests.support.memory import glibc

pytestmark = pytest.mark.cluster

LIMIT = 2 * 10**9
N = 1_000_000
"""Elements of a block, 8 MB: 2,000 pages."""
NAMES = sorted(variables(LIMIT))


def environment() -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in NAMES}


def first_environment() -> dict[str, str]:
    """Return the variables with which this process began: glibc reads no others."""
    found = Path("/proc/self/environ").read_text().split("\0")
    pairs = (each.partition("=") for each in found)
    return {name: value for name, _, value in pairs if name in NAMES}


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@pytest.fixture(autouse=True)
def unchanged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without variables of other clusters; none must stay in this process."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    yield
    assert environment() == dict.fromkeys(NAMES)


def started(**options: object) -> Client:
    return dgpu.start(1, device="cpu", memory_limit=LIMIT, cost_measure=False, **options)


def test_a_worker_keeps_a_fraction_of_its_limit() -> None:
    kept = variables(LIMIT)
    assert int(kept[THRESHOLD]) == LIMIT * FRACTION
    assert int(kept["MALLOC_MMAP_THRESHOLD_"]) == LIMIT * FRACTION / 2
    assert kept["MALLOC_ARENA_MAX"] == "1"


@pytest.mark.slow
@glibc
def test_all_workers_keep_memory_also_later_ones() -> None:
    with started() as client:
        client.cluster.scale(2)
        client.wait_for_workers(2, timeout=60)
        assert list(client.run(first_environment).values()) == [variables(LIMIT)] * 2
        client.restart()
        assert list(client.run(first_environment).values()) == [variables(LIMIT)] * 2


@pytest.mark.slow
def test_what_users_choose_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(THRESHOLD, "1000000")
    with started() as client:
        (found,) = client.run(environment).values()
    assert found == {**dict.fromkeys(NAMES), THRESHOLD: "1000000"}
    monkeypatch.delenv(THRESHOLD)


@pytest.mark.slow
@pytest.mark.parametrize("option", ["limit", "class", "fork"])
def test_other_workers_are_dasks(option: str) -> None:
    options = {"limit": {"memory_limit": 0}, "class": {"worker_class": Nanny}}.get(option, {})
    method = "forkserver" if option == "fork" else "spawn"
    ours = {"memory_limit": LIMIT, "worker_class": KeepingNanny, **options}
    with (
        dask.config.set({"distributed.worker.multiprocessing-method": method}),
        LocalCluster(n_workers=1, dashboard_address=":0", **ours) as cluster,
        Client(cluster) as client,
    ):
        (found,) = client.run(environment).values()
    assert found == {**dict.fromkeys(NAMES), THRESHOLD: "65536"}
    os.environ.pop(THRESHOLD, None)  # Dask leaves it here


@pytest.mark.slow
@glibc
@pytest.mark.parametrize("gangs", [True, False], ids=["gangs", "tasks"])
def test_arrays_get_known_memory(gangs: bool) -> None:
    with started(when="always" if gangs else "cheaper") as client:
        found = []
        for step in range(4):
            x = da.full(N, float(step)).persist()
            wait((x[::-1] + x).persist() if gangs else (x + 1).persist())
            found += client.run(faults).values()
            del x
    assert found[3] - found[2] < N * 8 / resource.getpagesize() / 20
