"""A bar for calls that take longer than a moment, from then on."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from threading import Timer
from typing import Any

import numpy as np
import pytest

import dask_dgpu as dgpu
from dask_dgpu.batches.operations import Operation
from dask_dgpu.batches.rules import elementwise
from tests.support.memory import bounded

A = np.ones((40, 30))


@pytest.fixture(autouse=True)
def moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dask_dgpu.batches.executor.MOMENT", 0.1)


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Seconds that the batches of an operation sleep, those with a rule and others."""
    seconds: list[float] = []

    def sleep(block: Any) -> Any:
        if block.size:
            time.sleep(seconds.pop() if seconds else 0)
        return block

    operation = Operation("nap", lambda x: x.map_blocks(sleep, dtype=float), elementwise)
    monkeypatch.setattr("dask_dgpu.batches.run.resolve", lambda op: operation)
    return seconds


def test_the_only_batch_has_a_bar(naps: list[float], capfd: Any) -> None:
    naps.append(0.5)
    dgpu.run("nap", A)
    shown = capfd.readouterr().err
    assert "nap" in shown
    assert "/1" in shown


def test_a_bar_before_the_first_batch_ends(naps: list[float], capfd: Any) -> None:
    with bounded(20_000):
        batches = dgpu.plan("nap", A).batches
        assert batches > 2
        naps.append(0.5)
        dgpu.run("nap", A)
    assert f"/{batches}" in capfd.readouterr().err


@pytest.mark.parametrize(("seconds", "options"), [(0, {}), (0.5, {"progress": False})])
def test_no_bar(naps: list[float], seconds: float, options: Any, capfd: Any) -> None:
    naps.append(seconds)
    dgpu.run("nap", A, **options)
    assert capfd.readouterr().err == ""


def test_functions_of_unknown_shape_have_one(capfd: Any) -> None:
    def some(x: Any) -> Any:
        return x[x.map_blocks(lambda block: time.sleep(0.4) or block > 0, dtype=bool)]

    dgpu.run(some, A)
    assert "some" in capfd.readouterr().err


@pytest.mark.parametrize("close", [True, False])
def test_a_bar_that_cannot_be_drawn_is_left_out(
    naps: list[float], monkeypatch: pytest.MonkeyPatch, close: bool
) -> None:
    naps.append(0.5)
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream if close else None)
    stream.close()
    np.testing.assert_array_equal(dgpu.run("nap", A), A)


def test_a_stream_that_closes_under_a_bar(naps: list[float], monkeypatch: Any) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    closing = Timer(0.3, stream.close)
    closing.start()
    naps.append(0.6)
    np.testing.assert_array_equal(dgpu.run("nap", A), A)
    closing.join()
    assert stream.closed
