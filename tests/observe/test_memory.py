"""The memory of gangs in an explanation: parts, passes, transfers, times, and what to change."""

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
BLOCK, ARRAY = 16 * 16 * 8, 64 * 64 * 8
ALWAYS: dict[str, Any] = {"local_ranks": 4, "when": "always", "on_error": "raise"}


def memory_of(*arrays: da.Array, **settings: Any) -> Any:
    with dgpu.enable(**{**ALWAYS, "memory_safety_margin": 0} | settings):
        return dgpu.explain(*arrays).memory


def test_a_gang_and_what_makes_it_up() -> None:
    x = X.persist(scheduler="sync")
    with dgpu.enable(**ALWAYS, memory_limit="1 MiB", memory_safety_margin=0.25):
        found = dgpu.explain(x @ x)
    ((_, prediction),), (gang,) = found.regions, found.memory.gangs
    assert (gang.operations, gang.prediction) == ("matmul", prediction)
    values = gang.to_dict()
    assert (values["input_bytes"], values["step_bytes"]) == (ARRAY // 4, ARRAY // 4)
    assert values["workspace_bytes"] > 0
    assert (values["shape"], values["rows"], values["parts"]) == ((64, 64), 64, 1)
    assert found.memory.peak_bytes == gang.peak_bytes == prediction.peak_bytes
    assert found.memory.received_bytes == values["received_bytes"] == prediction.moved_bytes
    assert found.memory.seconds == found.seconds
    assert found.memory.room == 0.75 * 2**20
    assert found.memory.feasible
    assert "fits, 768.00 kiB may be used" in str(found.memory)
    assert "1 of 64 x 64" in str(found.memory)
    assert "host" not in str(found.memory)


def test_plain_values_have_all_by_name() -> None:
    found = memory_of(X @ X).to_dict()
    (gang,) = found["gangs"]
    assert {"operations", "parts", "shape", "rows", "peak_bytes", "received_bytes"} <= set(gang)
    derived = {"peak_bytes", "received_bytes", "host_bytes", "feasible"}
    assert {"gangs", "room", "seconds", *derived} <= set(found)
    assert (found["feasible"], found["advice"], found["left"]) == (True, "", [])


def test_without_a_gang() -> None:
    found = memory_of(X + 1, memory_limit="1 MiB")
    assert (found.gangs, found.peak_bytes, found.feasible) == ((), 0, True)
    assert "no gang runs" in found._repr_html_()
    unknown = memory_of(X[X[:, 0] > 0] @ X, memory_limit=1000)
    assert unknown.feasible
    assert unknown.declined == ("matmul is left to Dask: chunk sizes are unknown",)


def test_parts() -> None:
    x = X.persist(scheduler="sync")
    whole = memory_of(x @ x, regions=False)
    found = memory_of(x @ x, memory_limit=whole.peak_bytes * 3 // 4, regions=False)
    gang = found.gangs[0].prediction
    assert (gang.parts, gang.shape, gang.rows) == (4, (32, 32), 32)
    assert gang.peak_bytes <= found.room < whole.peak_bytes
    assert re.search(r"matmul +4 of 32 x 32 ", str(found))


def test_columns_are_the_rows_of_a_part_if_they_alone_are_cut() -> None:
    x = da.ones((48, 200), chunks=(48, 20))
    z = x.rechunk((24, 20))
    room = memory_of(z, regions=False).peak_bytes * 3 // 4
    gang = memory_of(z, memory_limit=room, regions=False).gangs[0].prediction
    assert gang.shape[0] == 48
    assert gang.rows == gang.shape[1] < 200


def test_terms() -> None:
    x = da.ones((203, 6), chunks=(29, 6))
    z = x.T @ x
    settings = {"local_ranks": 1, "regions": False}
    room = memory_of(z, **settings).peak_bytes * 3 // 4
    found = memory_of(z, memory_limit=room, **settings)
    gang = found.gangs[0].prediction
    assert gang.parts == gang.terms == 2
    assert (gang.shape, gang.rows) == ((6, 6), 4 * 29)
    assert "2 of 6 x 6, 2 terms each" in " ".join(str(found).split())


def test_passes() -> None:
    z = dgpu.fft.fft2(X)
    room = memory_of(z, regions=False).peak_bytes // 2
    found = memory_of(z, X @ X, memory_limit=room)
    transforms = [gang for gang in found.gangs if "fft2" in gang.operations]
    assert [(each.pass_number, each.passes) for each in transforms] == [(1, 2), (2, 2)]
    assert all(each.prediction.parts > 1 for each in transforms)
    assert "fft2, pass 2 of 2" in found._repr_html_()
    (product,) = [gang for gang in found.gangs if gang not in transforms]
    assert product.passes == 1


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
    before = memory_of(*arrays, **settings)
    assert not before.feasible
    assert before.left
    assert before.peak_bytes > before.room
    changes = advised_settings(before)
    assert changes.keys() <= settings.keys()
    assert ("memory_cap" in changes) == ("memory_cap" in settings)
    after = memory_of(*arrays, **settings | changes)
    assert after.feasible
    assert after.gangs
    assert (after.left, after.advice) == ((), "")


def test_what_does_not_fit_has_its_name_and_bytes() -> None:
    found = memory_of(X @ X, memory_limit=3000)
    (product,) = found.left
    needed = at_least(product.peak_bytes)
    assert product.operations == "matmul"
    assert product.prediction.shape == (16, 16)
    assert product.peak_bytes == found.peak_bytes > 3000
    text = f"does not fit: matmul needs at least {needed} on a rank and 2.93 kiB may be used; set"
    shown = " ".join(str(found).split())
    assert shown.startswith(text)
    assert "or use smaller chunks" in shown
    assert re.search(
        rf"matmul left to Dask .* {product.to_dict()['workspace_bytes'] / 1024:.2f} kiB", shown
    )
    assert found.advice in found._repr_html_()
    assert memory_of((x := da.ones((64, 64), chunks=8)) @ x, memory_limit=3000).feasible


def test_less_than_advised_is_too_little() -> None:
    found = memory_of(X @ X, memory_limit=3000)
    limit = parse_bytes(advised_settings(found)["memory_limit"])
    assert not memory_of(X @ X, memory_limit=int(limit * 0.98)).feasible


@pytest.mark.parametrize("others", [1, pytest.param(3000, marks=pytest.mark.slow), 60_000])
def test_other_results_count(others: int) -> None:
    """Their bytes are rounded, to a number that grows with the limit."""
    values = {"when": "always", "memory_safety_margin": 0.25, "device_memory": 1 << 20}
    advice = explained(X @ X, others=others, memory_limit=8000, **values).memory.advice
    found = re.match(r"set dgpu.memory.limit to at least (.*) or use smaller chunks", advice)
    assert found is not None
    assert "or use more workers" in advice
    limit = parse_bytes(found.group(1).partition(" or ")[0])
    assert explained(X @ X, others=others, memory_limit=limit, **values).memory.feasible


@pytest.mark.parametrize(("memory", "freed"), [(3000, []), (10_000, ["free other results"])])
def test_no_setting_is_advised_beyond_the_memory_of_workers(memory: int, freed: list[str]) -> None:
    values = {"workers": 2, "device": "cuda", "device_memory": memory, "when": "always"}
    first, *others = explained(X @ X, others=7000, **values).memory.advice.split(" or ")
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
    ).memory


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
    assert found.gangs[0].prediction.host_bytes == found.host_bytes == copied
    assert bool(re.search(r"received +host +predicted", str(found))) == bool(copied)


@pytest.mark.parametrize("memory", [1 << 30, 50_000])  # whole, in parts
def test_seconds_include_copies_over_pcie(memory: int) -> None:
    x = X.persist(scheduler="sync")
    slow, none = (on_gpus(x @ x, memory=memory, link_bandwidth=rate) for rate in (1e3, 1e30))
    gang, without = (each.gangs[0].prediction for each in (slow, none))
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
    assert on_gpus(x @ x, workers=0).host_bytes == 0


@given(st.integers(1, 1 << 60))
def test_bytes_are_rounded_up(nbytes: int) -> None:
    found = parse_bytes(at_least(nbytes))
    assert nbytes <= found <= max(nbytes * 1.011, nbytes + 1)
