"""The memory of gangs in an explanation: what makes it up, copies, and what to change."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import dask.array as da
import pytest
from dask.utils import parse_bytes
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from dask_dgpu.cost.table import at_least
from tests.support.clusters import explained
from tests.support.clusters import on_gpus as pretend

X = da.ones((64, 64), chunks=16)
ARRAY = 64 * 64 * 8
ALWAYS: dict[str, Any] = {"local_ranks": 4, "when": "always", "on_error": "raise"}


def explained_with(*arrays: da.Array, **settings: Any) -> Any:
    with dgpu.enable(**{**ALWAYS, "memory_safety_margin": 0} | settings):
        return dgpu.explain(*arrays)


def most_of(found: Any) -> int:
    """Return the peak of the gang that needs most."""
    return max(prediction.peak_bytes for _, prediction in found.regions)


def test_what_makes_up_the_peak() -> None:
    x = X.persist(scheduler="sync")
    found = explained_with(x @ x, memory_limit="1 MiB", memory_safety_margin=0.25)
    ((_, prediction),) = found.regions
    inputs, results, workspace = prediction.peak
    assert (inputs, results) == (ARRAY // 4, ARRAY // 4)
    assert workspace > 0
    assert sum(prediction.peak) == prediction.peak_bytes
    assert found.room == 0.75 * 2**20
    assert found.advice == found.to_dict()["advice"] == ""


def test_no_advice_if_memory_is_not_the_reason() -> None:
    assert not explained_with(X + 1, memory_limit="1 MiB").advice
    unknown = explained_with(X[X[:, 0] > 0] @ X, memory_limit=1000)
    assert not unknown.advice
    assert [each.reason for each in unknown.declined] == ["chunk sizes are unknown"]


def test_passes() -> None:
    z = dgpu.fft.fft2(X)
    room = most_of(explained_with(z, regions=False)) // 2
    found = explained_with(z, memory_limit=room)
    parts = [prediction.parts for _, prediction in found.regions]
    assert len(parts) == 2
    assert min(parts) > 1
    assert most_of(found) <= room


OPERATIONS: dict[str, Callable[[], list[da.Array]]] = {
    "matmul": lambda: [X @ X],
    "terms": lambda: [X.T @ X[:, :16]],
    "uneven": lambda: [da.ones((64, 50), chunks=(20, 9)) @ da.ones((50, 64), chunks=(9, 31))],
    "rechunk": lambda: [X.rechunk((64, 8)).rechunk((8, 64))],
    "fft2": lambda: [dgpu.fft.fft2(X)],
    "stencil": lambda: [dgpu.stencil(X, iterations=5)],
    "overlap": lambda: [da.overlap.overlap(X, depth=2, boundary="periodic")],
    "several": lambda: [(X @ X).sum(axis=0), dgpu.fft.rfft2(X), X[:, :1] @ X[:1]],
}

SETTINGS: dict[str, dict[str, Any]] = {
    "limit": {"memory_limit": 3000},
    "margin": {"memory_limit": 4001, "memory_safety_margin": 0.3},
    "cap": {"memory_cap": 3001},
    "both": {"memory_cap": 3000, "memory_limit": 4000, "memory_safety_margin": 0.1},
    "cap of more": {"memory_cap": 3000, "memory_limit": "1 MiB"},
}


def advised_settings(found: Any) -> dict[str, str]:
    pairs = re.findall(r"dgpu\.memory\.(\w+) to at least (\S+ \w+)", found.advice)
    return {f"memory_{name}": text for name, text in pairs}


@pytest.mark.parametrize(
    ("operation", "given"),
    [
        pytest.param(operation, given, marks=[] if quick else pytest.mark.slow)
        for operation in OPERATIONS
        for given in SETTINGS
        for quick in [operation == "rechunk" or (operation, given) == ("several", "both")]
    ],
)
def test_the_advised_settings_are_enough(operation: str, given: str) -> None:
    arrays, settings = OPERATIONS[operation](), SETTINGS[given]
    before = explained_with(*arrays, **settings)
    assert "use smaller chunks" in before.advice
    changes = advised_settings(before)
    assert changes.keys() <= settings.keys()
    assert ("memory_cap" in changes) == ("memory_cap" in settings)
    after = explained_with(*arrays, **settings | changes)
    assert after.regions
    assert not after.advice


def test_advice_follows_the_table() -> None:
    found = explained_with(X @ X, memory_limit=3000)
    assert str(found).splitlines()[-2] == f"to let it fit: {found.advice}"
    assert re.fullmatch("set dgpu.memory.limit to at least .* or use smaller chunks", found.advice)
    assert found.advice in found._repr_html_()
    (product,) = (each for each in found.operations if each.operation == "matmul")
    assert re.fullmatch("it(s smallest part)? needs .* on a rank and .* may be used", product.why)
    assert not explained_with((x := da.ones((64, 64), chunks=8)) @ x, memory_limit=3000).advice


def test_less_than_advised_is_too_little() -> None:
    found = explained_with(X @ X, memory_limit=3000)
    limit = parse_bytes(advised_settings(found)["memory_limit"])
    assert explained_with(X @ X, memory_limit=int(limit * 0.98)).advice


@pytest.mark.parametrize("others", [1, pytest.param(3000, marks=pytest.mark.slow), 60_000])
def test_other_results_count(others: int) -> None:
    """Their bytes are rounded, to a number that grows with the limit."""
    values = {"when": "always", "memory_safety_margin": 0.25, "device_memory": 1 << 20}
    advice = explained(X @ X, others=others, memory_limit=8000, **values).advice
    found = re.match(r"set dgpu.memory.limit to at least (.*) or use smaller chunks", advice)
    assert found is not None
    assert "or use more workers" in advice
    limit = parse_bytes(found.group(1).partition(" or ")[0])
    assert not explained(X @ X, others=others, memory_limit=limit, **values).advice


@pytest.mark.parametrize(("memory", "freed"), [(3000, []), (10_000, ["free other results"])])
def test_no_setting_is_advised_beyond_the_memory_of_workers(memory: int, freed: list[str]) -> None:
    values = {"workers": 2, "device": "cuda", "device_memory": memory, "when": "always"}
    first, *others = explained(X @ X, others=7000, **values).advice.split(" or ")
    assert re.fullmatch(r"use workers with at least .* for blocks", first)
    assert others == ["use smaller chunks", "use more workers", *freed]


def on_gpus(
    array: da.Array, *, of_cupy: str = "", workers: int = 2, memory: int = 1 << 30, **figures: float
) -> Any:
    """Explain an array on GPUs; the layers whose names match are of CuPy's arrays."""
    if of_cupy:
        pretend(array, lambda name: bool(re.search(of_cupy, name)))
    return explained(
        array,
        workers=workers,
        device="cuda" if workers else "cpu",
        device_memory=memory,
        figures=figures,
        when="always",
        local_ranks=2,
    )


@pytest.mark.parametrize(
    ("make", "of_cupy", "copied"),
    [
        (lambda x: x @ x, "", ARRAY + ARRAY),
        (lambda x: (x @ x) @ x, "", ARRAY + ARRAY),
        (lambda x: x @ x, ".", 0),
        (lambda x: (x @ x).sum(), "", ARRAY + ARRAY),  # the sum is of NumPy blocks
        (lambda x: x @ x.map_blocks(abs), "", 3 * ARRAY),
    ],
)
def test_blocks_of_numpy_pass_to_gpus_and_back(
    make: Callable[[da.Array], da.Array], of_cupy: str, copied: int
) -> None:
    found = on_gpus(make(X.persist(scheduler="sync")), of_cupy=of_cupy)
    ((_, prediction),) = found.regions
    assert prediction.host_bytes == copied


@pytest.mark.parametrize("memory", [1 << 30, 50_000])  # whole, in parts
def test_seconds_include_copies_over_pcie(memory: int) -> None:
    x = X.persist(scheduler="sync")
    slow, none = (on_gpus(x @ x, memory=memory, link_bandwidth=rate) for rate in (1e3, 1e30))
    ((_, gang),), ((_, without),) = slow.regions, none.regions
    assert (gang.parts > 1) is (memory < 1 << 30)
    copies = gang.host_bytes / (2 * 1e3)
    assert gang.host_bytes >= 2 * ARRAY
    assert gang.seconds == pytest.approx(without.seconds + copies)
    assert slow.seconds == pytest.approx(none.seconds + copies)


def test_no_seconds_of_pcie_for_blocks_on_the_device() -> None:
    x = X.persist(scheduler="sync")
    slow, none = (on_gpus(x @ x, of_cupy=".", link_bandwidth=rate) for rate in (1e3, 1e30))
    assert slow.seconds == none.seconds


def test_copies_decide_nothing_against_plain_dask() -> None:
    """Its functions of NumPy blocks are predicted at a GPU's rates too, without copies."""
    z = da.ones((4096, 4096), chunks=512) @ da.ones((4096, 4096), chunks=512)
    slow = {"link_bandwidth": 1.0}
    assert explained(z, device="cuda", device_memory=1 << 40, figures=slow).regions


def test_nothing_passes_to_a_gpu_in_a_process_without() -> None:
    x = X.persist(scheduler="sync")
    ((_, prediction),) = on_gpus(x @ x, workers=0).regions
    assert prediction.host_bytes == 0


@given(st.integers(1, 1 << 60))
def test_bytes_are_rounded_up(nbytes: int) -> None:
    found = parse_bytes(at_least(nbytes))
    assert nbytes <= found <= max(nbytes * 1.011, nbytes + 1)
