"""What a profiler keeps of gangs and tasks: totals, and a bounded timeline."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from typing import Any

import numpy as np
import pytest

import dask_dgpu.runtime.recording as recording
from dask_dgpu.algorithms.summa.wire import Sent
from dask_dgpu.operations import OPERATIONS
from dask_dgpu.operations.operation import Node, Value
from dask_dgpu.runtime.execute import Span
from dask_dgpu.runtime.program import Launch, Program
from dask_dgpu.runtime.recording import DASK, GANG, Recording, word_of, words_of
from graph_opt.model.cost import HOST, ProductRates, calibrated
from graph_opt.model.names import label

TOKEN = "0123456789abcdef0123456789abcdef"
RATES = {"bandwidth": 4.0, "float64.square": 10.0, "float64.tall": 1.0, "float64.vector": 1.0}
VALUE = Value(((0, 2), (0, 2)), "float64")


def launch(*names: str, machine: Any = HOST, dtype: str = "float64") -> Launch:
    """Return a program of products, named ``_chunk_sum-aggregate``, and local nodes."""
    value = replace(VALUE, dtype=dtype)
    products = [name.startswith("_chunk_sum") for name in names]
    nodes = tuple(Node("matmul" if product else None, (), value) for product in products)
    titles = (f"matmul-{TOKEN}",) * sum(products) or (f"result-{TOKEN}",)
    return Launch(
        Program((), nodes, (), machine), tuple(f"{each}-{TOKEN}" for each in names), titles
    )


def span(name: str, start: float, stop: float, *transfers: float, sent: int = 0) -> Span:
    return Span(label(name), "compute", start, stop, 8, *transfers, sent_bytes=sent)


def found(kept: Recording) -> dict[tuple[str, str], recording.Row]:
    return {(row.operation, row.kind): row for row in kept.profile(0, 10, {}).rows}


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("matmul", "matmul"),
        ("_chunk_sum-aggregate", "sum"),
        ("chunk_einsum", "einsum"),
        ("sum-partial", "sum"),
        ("mean_agg-aggregate", "mean"),
        ("mean_chunk", "mean"),
        ("rechunk-merge", "rechunk"),
        ("_trim", "trim"),
        ("ones_like", "ones_like"),
        ("poisson-forward", "poisson-forward"),
    ],
)
def test_operations_have_the_users_names(name: str, word: str) -> None:
    assert word_of(f"{name}-{TOKEN}") == word


def test_collectives_are_named_by_their_titles() -> None:
    work = launch("random", "_chunk_sum-aggregate", "sum", "sum-aggregate")
    assert words_of(work) == ["random", "matmul", "sum", "sum"]


def test_totals_are_those_of_the_slowest_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        OPERATIONS, "matmul", replace(OPERATIONS["matmul"], flops=lambda plan: plan)
    )
    work = launch("_chunk_sum-aggregate", "sum", "sum-partial", machine=calibrated(HOST, RATES))
    product, *sums = work.names
    ranks = {
        "a": [span(product, 0, 2, 0.25, 0.5, sent=8), *(span(s, 2, 3, 0.0, 0.0) for s in sums)],
        "b": [span(product, 0, 4, 0.75, 1.0, sent=24), *(span(s, 4, 6, 0.0, 0.0) for s in sums)],
    }
    kept = Recording()
    kept.add_gang(work, {0: 120.0}, ranks, {product: Sent(20, 50)})
    rows = found(kept)
    assert list(rows) == [("matmul", GANG), ("sum", GANG)]
    row = rows["matmul", GANG]
    assert (row.calls, row.seconds, row.wait) == (1, 4, 1)
    assert (row.compute, row.transfer) == (3, 1.75)
    assert (row.sent_bytes, row.dense_bytes) == (32, 62)
    assert (row.rank_bytes, row.network_seconds) == (16, 4)
    assert (row.rank_flops, row.product_seconds) == (60, 6)
    total = rows["sum", GANG]
    assert (total.calls, total.seconds, total.sent_bytes) == (1, 4, 0)  # two steps of one sum
    kept.add_gang(work, {0: 120.0}, ranks, {})
    assert (found(kept)["matmul", GANG].calls, kept.gangs) == (2, 2)


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float16"])
def test_share_of_the_measured_rate(dtype: str) -> None:
    """A product of complex numbers is four of real ones; without a rate there is no share."""
    row = recording.Row("matmul", GANG)
    rates = ("float64", ProductRates(10.0, 1, 1)), ("complex128", ProductRates(5.0, 1, 1))
    machine = replace(HOST, products=rates, measured=("products",))
    row.add_flops(200.0, dtype, machine)
    expected = {"float64": 20.0, "complex128": 10.0}.get(dtype)
    assert isnan(row.product_seconds) if expected is None else row.product_seconds == expected
    row.add_flops(200.0, dtype, HOST)
    assert isnan(row.product_seconds)
    assert row.rank_flops == 400


def test_times_of_transfers_that_nobody_knows() -> None:
    work = launch("sum")
    several, one = Recording(), Recording()
    several.add_gang(work, {}, {rank: [span(work.names[0], 0, 2)] for rank in "ab"}, {})
    one.add_gang(work, {}, {"a": [span(work.names[0], 0, 2)]}, {})
    row = found(several)["sum", GANG]
    assert row.seconds == 2
    assert all(map(isnan, (row.compute, row.transfer, row.wait)))
    row = found(one)["sum", GANG]
    assert (row.compute, row.transfer, row.wait) == (2, 0, 0)


def test_tasks_count_all_threads() -> None:
    times = [
        {"action": "transfer", "start": 0, "stop": 2},
        {"action": "disk-read", "start": 2, "stop": 3},
        {"action": "compute", "start": 3, "stop": 8},
    ]
    kept = Recording()
    kept.add_task("a", "thread 1", "add", times)
    kept.add_task("a", "thread 2", "add", times[2:])
    row = found(kept)["add", DASK]
    assert row.calls == 2
    assert (row.seconds, row.compute, row.transfer) == (13, 10, 2)
    assert isnan(row.wait)
    assert isnan(row.sent_bytes)
    events = kept.profile(0, 1, {"b": "worker 0"})
    assert [(e.track, e.stop - e.start) for e in events.events] == [
        ("transfers", 2),
        ("thread 1", 5),
        ("thread 2", 5),
    ]
    assert events.lanes == {"b": "worker 0", "a": "a"}  # a worker may be lost


def test_the_timeline_is_bounded_and_the_totals_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MOST_EVENTS", 3)
    kept = Recording()
    for at in range(5):
        kept.add_task("a", "1", "add", [{"action": "compute", "start": at, "stop": at + 1}])
    record = kept.profile(0, 5, {})
    assert (len(record.events), record.dropped) == (3, 2)
    assert (record.rows[0].calls, record.rows[0].seconds, record.tasks) == (5, 5, 5)


def test_a_record_does_not_change_later() -> None:
    kept = Recording()
    task = [{"action": "compute", "start": 0, "stop": 1}]
    kept.add_task("a", "1", "add", task)
    record = kept.profile(0, 1, {})
    kept.add_task("a", "1", "add", task)
    assert (record.rows[0].calls, len(record.events)) == (1, 1)


def test_flops_of_a_product_of_complex_numbers() -> None:
    from dask_dgpu.operations.operation import product_flops

    a, b = np.ones((2, 3), complex), np.ones((3, 5), complex)
    real = 4 * a.size * b.shape[1]  # products of real numbers
    assert product_flops(a.size * b.shape[1], "complex128") == 2 * real
    assert product_flops(a.size * b.shape[1], "bfloat16") == 2 * a.size * b.shape[1]
