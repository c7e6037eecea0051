"""Profiles of gangs and tasks of this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from math import nan
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask.array.optimization import optimize
from dask.base import compute
from matplotlib.image import imread

import dask_dgpu as dgpu
from dask_dgpu.algorithms.summa.choose import traffic
from dask_dgpu.algorithms.summa.wire import Sent
from dask_dgpu.observe.profiler import Timeline
from dask_dgpu.observe.profiler import timeline as drawing
from dask_dgpu.runtime import tasks
from dask_dgpu.runtime.plans import plans
from dask_dgpu.runtime.recording import Event, Profile, Row
from tests.support.browser import chromium
from tests.support.programs import even, launch_of

SETTINGS: dict[str, Any] = {"when": "always", "on_error": "raise", "local_ranks": 3}
A = np.random.default_rng(23).random((12, 12))


@pytest.fixture
def x() -> Iterator[da.Array]:
    with dgpu.enable(**SETTINGS):
        yield da.from_array(A, chunks=(4, 6))


def profiled(*arrays: da.Array) -> tuple[dgpu.Profiler, tuple[Any, ...]]:
    with dgpu.Profiler() as prof:
        values = compute(*arrays, scheduler="threads")
    return prof, values


def rows_of(prof: dgpu.Profiler, by: str) -> dict[str, dict[str, Any]]:
    return {row["operation"]: row for row in prof.to_dict()["rows"] if row["by"] == by}


def test_each_operation_has_a_row(x: da.Array) -> None:
    prof, (value,) = profiled((x @ x.T + 1).sum(axis=0))
    np.testing.assert_allclose(value, (A @ A.T + 1).sum(axis=0), rtol=1e-12)
    rows = rows_of(prof, "gang")
    assert {"matmul", "sum"} <= rows.keys()
    product = rows["matmul"]
    assert product["calls"] == 1
    assert product["seconds"] == pytest.approx(product["compute"] + product["wait"])
    assert product["transfer"] >= product["wait"] > 0
    assert product["flops"] * 3 * product["compute"] == pytest.approx(2 * 12**3)
    assert product["flops_share"] is None  # nothing was measured
    assert prof.to_dict()["gangs"] == 1


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x @ x, id="product"),
        pytest.param(lambda x: da.tensordot(x, x, axes=([0], [0])), id="tensordot"),
        pytest.param(lambda x: da.fft.fft2(x), id="fft2"),
        pytest.param(lambda x: x.rechunk((12, 1)), id="rechunk"),
        pytest.param(lambda x: dgpu.stencil(x, iterations=3), id="stencil"),
        pytest.param(lambda x: dgpu.sum(x, axis=0), id="sum"),
        pytest.param(lambda x: (x + x.T).sum(), id="region"),
        pytest.param(
            lambda x: dgpu.conv2d(x[None, None], da.ones((1, 1, 3, 3)), padding=1), id="conv2d"
        ),
        pytest.param(lambda x: dgpu.matmul(x, x, wire_dtype="float16"), id="half"),
        pytest.param(lambda x: dgpu.matmul(x, x, strategy="inner"), id="inner"),
    ],
)
def test_bytes_are_those_that_ranks_sent(
    x: da.Array, ledgers: list[Any], function: Callable[[da.Array], da.Array]
) -> None:
    prof, _ = profiled(function(x))
    gangs = rows_of(prof, "gang").values()
    assert len(ledgers) == 3
    moved = sum(ledger.bytes_received for ledger in ledgers)
    assert sum(row["sent_bytes"] for row in gangs) == moved
    assert moved or not gangs


def test_bytes_of_a_product_are_those_of_its_plan(x: da.Array) -> None:
    square = da.from_array(A, chunks=4)
    y = square @ square
    program = launch_of(y, 3).program
    (part,) = plans(program, even(program, 3), 3).collectives.values()
    planned = sum(step[1].sum() for step in traffic(part.plan))
    prof, _ = profiled(y)
    assert rows_of(prof, "gang")["matmul"]["sent_bytes"] == planned > 0


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: da.fft.fft2(x), id="fft2"),
        pytest.param(
            lambda x: dgpu.conv2d(x[None, None], da.ones((1, 1, 3, 3)), padding=1), id="conv2d"
        ),
    ],
)
def test_bytes_are_those_of_the_plan(x: da.Array, function: Callable[[da.Array], da.Array]) -> None:
    y = function(x)
    (planned,) = dgpu.explain(y).to_dict()["rewritten"]
    prof, _ = profiled(y)
    sent = sum(row["sent_bytes"] for row in rows_of(prof, "gang").values())
    assert sent == planned["total_bytes"] > 0


def test_a_product_without_zeros_has_dense_and_sent_bytes(x: da.Array) -> None:
    sparse = np.where(np.arange(12)[:, None] // 4 == np.arange(12) // 4, A, 0)
    y = da.from_array(sparse, chunks=4)
    prof, (value,) = profiled(dgpu.matmul(y, y, strategy="row", sparse_threshold=0.5))
    np.testing.assert_allclose(value, sparse @ sparse, rtol=1e-12)
    row = rows_of(prof, "gang")["matmul"]
    _, sent = tasks.details[-1]
    assert isinstance(sent, Sent)
    assert row["dense_bytes"] - row["sent_bytes"] == sent.exact_bytes - sent.nbytes > 0
    assert " dense " in str(prof)
    prof, _ = profiled(y @ y)
    assert " dense " not in str(prof)


@pytest.mark.parametrize(
    ("function", "operation", "flops"),
    [
        (lambda x: x @ x, "matmul", 2 * 12**3),
        (lambda x: (x * 1j) @ x, "matmul", 8 * 12**3),
        (lambda x: da.einsum("ij,kj->ik", x, x), "einsum", 2 * 12**3),
        (lambda x: da.tensordot(x, x, axes=2), "tensordot", 2 * 12**2),
        (lambda x: dgpu.stencil(x, iterations=3), "stencil", 3 * 2 * 5 * 12**2),
        (lambda x: da.fft.fft2(x + 0j), "fft2", 2 * 12 * 5 * 12 * np.log2(12)),
        (
            lambda x: dgpu.conv2d(x[None, None], da.ones((2, 1, 3, 3)), padding=1),
            "conv2d",
            2 * 2 * 9 * 12**2,
        ),
    ],
)
def test_flops(
    x: da.Array, function: Callable[[da.Array], da.Array], operation: str, flops: float
) -> None:
    prof, _ = profiled(function(x))
    row = rows_of(prof, "gang")[operation]
    assert row["flops"] * 3 * row["compute"] == pytest.approx(flops)


def test_plain_dask_is_one_group_for_each_prefix() -> None:
    dgpu.disable()
    y = (da.from_array(A, chunks=4, name="given") + 1).sum()
    prof, (value,) = profiled(y)
    assert value == pytest.approx((A + 1).sum())
    found = prof.to_dict()
    assert found["gangs"] == 0
    assert {row["by"] for row in found["rows"]} == {"Dask"}
    optimized = optimize(y.dask, y.__dask_keys__())
    assert sum(row["calls"] for row in found["rows"]) == found["tasks"]
    assert found["tasks"] == len(optimized) + 1  # one joins the result
    assert any("sum" in row["operation"] for row in found["rows"])
    assert all(row["sent_bytes"] is row["wait"] is None for row in found["rows"])
    assert "this process, thread 1" in prof.timeline().html()


def refuse(block: Any) -> Any:
    if np.asarray(block).any():
        raise ArithmeticError("no luck")
    return block


def test_a_failure_passes_through(x: da.Array) -> None:
    y = (x @ x).map_blocks(refuse, meta=A).rechunk((12, 3))
    prof = dgpu.Profiler()
    with pytest.raises(ArithmeticError, match="no luck"), prof:
        y.compute(scheduler="threads")
    found = prof.to_dict()
    assert found["gangs"] == found["running"] == 0
    assert tasks.recordings == []


def test_blocks_may_be_nested_and_repeated(x: da.Array) -> None:
    outer, inner = dgpu.Profiler(), dgpu.Profiler()
    with outer:
        compute(x @ x, scheduler="threads")
        with inner:
            compute(x @ x, scheduler="threads")
            assert outer.to_dict()["gangs"] == 2  # so far
        compute(da.fft.fft2(x), scheduler="threads")
    assert rows_of(outer, "gang")["matmul"]["calls"] == 2
    assert rows_of(inner, "gang")["matmul"]["calls"] == 1
    assert rows_of(outer, "gang").keys() - rows_of(inner, "gang").keys() == {"fft2"}
    with inner:
        pass
    assert inner.to_dict()["rows"] == []
    assert str(inner).splitlines()[0].endswith(": 0 gangs, 0 tasks of Dask, 0 B sent")


def test_nothing_is_recorded_outside_of_a_block(x: da.Array) -> None:
    prof, _ = profiled(x @ x)
    before = prof.to_dict()
    compute(x @ x, scheduler="threads")
    assert prof.to_dict() == before


def test_what_is_refused(x: da.Array, tmp_path: Path) -> None:
    prof = dgpu.Profiler()
    assert str(prof) == "a profiler before its block"
    assert prof._repr_html_() == "<p>a profiler before its block</p>"
    for call in (prof.table, prof.timeline, prof.to_dict, lambda: prof.to_chrome_trace("x")):
        with pytest.raises(dgpu.errors.DgpuError, match="expected a profiler with a record"):
            call()
    with prof, pytest.raises(dgpu.errors.DgpuError, match="got one within its own block"), prof:
        pass
    with pytest.raises(ValueError, match=r"expected path to be a file named \.html, got"):
        prof.timeline().save(tmp_path / "x.png")
    with pytest.raises(TypeError, match=r"expected client to be a distributed\.Client, got 1"):
        dgpu.Profiler(1)  # type: ignore[arg-type]


def test_timeline_needs_no_script(x: da.Array, tmp_path: Path) -> None:
    prof, _ = profiled((x @ x).sum())
    prof.timeline().save(tmp_path / "time.html")
    page = (tmp_path / "time.html").read_text()
    assert "<script" not in page
    assert all(f">rank {rank}, gang<" in page for rank in range(3))
    assert ">matmul<" in page
    assert prof._repr_html_().startswith("<table")
    assert "<svg" in prof._repr_html_()
    assert prof.timeline().html() == prof.timeline().html()  # no dates, no random names


@pytest.mark.slow
@pytest.mark.browser
def test_timeline_in_a_browser(x: da.Array, tmp_path: Path) -> None:
    prof, _ = profiled((x @ x).sum())
    prof.timeline().save(tmp_path / "time.html")
    with chromium(1200, 800) as browser:
        browser.open(tmp_path / "time.html")
        assert browser.value("document.querySelectorAll('svg image').length") > 0
        assert "matmul" in browser.value("document.querySelector('svg').textContent")


def test_timeline_needs_matplotlib(
    x: da.Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prof, _ = profiled((x @ x).sum())
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(dgpu.errors.DgpuError, match="expected matplotlib to be installed"):
        prof.timeline().save(tmp_path / "time.html")
    assert "matmul" in prof._repr_html_()  # its table
    assert "expected matplotlib to be installed" in prof.timeline()._repr_html_()


def event(operation: str, start: float, stop: float, **more: Any) -> Event:
    facts = {"lane": "a", "track": "gang", "wait": nan, "sent_bytes": 0}
    return Event(operation=operation, start=start, stop=stop, **(facts | more))


def record(*events: Event) -> Profile:
    return Profile(0.0, 10.0, {"a": "worker <0>"}, (), events, 0, 0)


def test_marks_of_a_timeline(tmp_path: Path) -> None:
    events = (
        event("mul", 0, 5, wait=2.5),
        event("add", 9, 10, track="140"),
    )
    line = Timeline(replace(record(*events), dropped=1))
    html = line.html()
    assert all(f">{text}<" in html for text in ("worker &lt;0&gt;, gang", "mul", "add"))
    assert ">worker &lt;0&gt;, thread 1<" in html
    assert "1 late events are not drawn<" in html
    line._figure().savefig(tmp_path / "time.png")
    pixels = np.round(imread(tmp_path / "time.png")[..., :3] * 255)
    row = pixels[_of(pixels, drawing.COLOURS[0])[:, : pixels.shape[1] // 2].any(axis=1)]
    mul = _of(row, drawing.COLOURS[0]).any(axis=0).sum()
    dark = (row.sum(axis=-1) < 250).any(axis=0).sum()
    assert dark / mul == pytest.approx(1 / 2, rel=0.1)


def _of(pixels: Any, colour: str) -> Any:
    return (pixels == [*bytes.fromhex(colour[1:])]).all(axis=-1)


def test_trace_opens_in_perfetto(x: da.Array, tmp_path: Path) -> None:
    """Complete events have a process, a thread, and times that do not cross in a thread."""
    prof, _ = profiled((x @ x).sum())
    prof.to_chrome_trace(tmp_path / "trace.json")
    entries = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {entry["args"]["name"] for entry in entries if entry["ph"] == "M"}
    assert {"rank 0", "rank 1", "rank 2", "gang"} <= names
    work = [entry for entry in entries if entry["ph"] == "X"]
    assert len(work) == len(prof.to_dict()["events"])
    threads: dict[tuple[int, int], list[Any]] = {}
    for entry in work:
        threads.setdefault((entry["pid"], entry["tid"]), []).append(entry)
    for entries in threads.values():
        entries.sort(key=lambda entry: entry["ts"])
        for first, second in pairwise(entries):
            assert first["ts"] + first["dur"] <= second["ts"] + 1  # microseconds


def test_transfers_of_a_trace_may_overlap(tmp_path: Path) -> None:
    from dask_dgpu.observe.profiler.timeline import write_trace

    events = [event("add", 1, 3, track="transfers"), event("add", 2, 4, track="transfers")]
    write_trace(record(*events), tmp_path / "trace.json")
    entries = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    times = [(e["ph"], e["ts"], e["id"]) for e in entries if e["ph"] in "be"]
    assert times == [("b", 1e6, 0), ("e", 3e6, 0), ("b", 2e6, 1), ("e", 4e6, 1)]


def test_rates_and_shares_of_a_table() -> None:
    row = Row("matmul", "gang", calls=2, seconds=4.0, compute=3.0, transfer=2.0, wait=1.0)
    row.sent_bytes = row.dense_bytes = 8 * 10**9
    row.rank_bytes, row.network_seconds = 4e9, 1.0
    row.rank_flops, row.product_seconds = 1.5e12, 2.25
    table = dgpu.ProfileTable(Profile(0.0, 5.0, {}, (row,), (), (), 2, 0, running=1))
    assert "2 (50%)" in str(table)  # GB/s
    assert "0.5 (75%)" in str(table)  # TFLOP/s
    assert "1 still running" in str(table)
    assert repr(table) == str(table)
    assert "<td>matmul</td>" in table._repr_html_()


@pytest.mark.gpu
def test_times_are_those_of_the_device() -> None:
    """The host launches a kernel that runs for 50 ms, and is long past it when it ends."""
    import cupy

    spin = cupy.RawKernel(
        r"""
        extern "C" __global__ void spin(long long nanoseconds) {
            long long begin, now;
            asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
            do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); }
            while (now - begin < nanoseconds);
        }
        """,
        "spin",
    )
    spin.compile()

    def busy(block: Any) -> Any:
        spin((1,), (1,), (np.int64(50_000_000),))
        return block + 1

    with dgpu.enable(**SETTINGS | {"local_ranks": 1}):
        x = da.from_array(cupy.asarray(A), chunks=(12, 12), asarray=False)
        y = (x @ x).map_blocks(busy, meta=x._meta) @ x
        prof, (value,) = profiled(y)
    np.testing.assert_allclose(value.get(), (A @ A + 1) @ A, rtol=1e-12)
    rows = rows_of(prof, "gang")
    assert rows["busy"]["seconds"] >= 0.049
    assert rows["busy"]["compute"] == rows["busy"]["seconds"]
    events = [each for each in prof.to_dict()["events"] if each["track"] == "gang"]
    ends = [(each["operation"], each["start"], each["stop"]) for each in events]
    (begin,) = (start for name, start, _ in ends if name == "busy")
    assert all(start >= begin + 0.049 for name, start, _ in ends[-1:] if name == "matmul")
