"""The warnings that users see if dask_dgpu itself fails on a graph."""

from __future__ import annotations

import logging
import pickle
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

import dask_dgpu as dgpu
from dask_dgpu import optimizer
from dask_dgpu.optimizer import GraphOptimizer
from dask_dgpu.planner import fallbacks
from dask_dgpu.planner.fallbacks import MOST_CHARACTERS
from dask_dgpu.planner.present import OFFLOADED
from dask_dgpu.runtime.scheduler.states import DASK_WARNINGS, MOST_NAMES, TOPIC
from tests.cluster.observe import eventually

A = np.arange(12.0).reshape(3, 4)
TEXT = "dask_dgpu left a graph to Dask: RuntimeError: a bug"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
        dgpu.enable(client, when="always", on_error="fallback"),
    ):
        yield client


def fail(*arguments: Any) -> Any:
    raise RuntimeError("a bug")


def array() -> da.Array:
    """Return an array of a new name."""
    return da.from_array(A, chunks=2, name=False)


def compute(x: da.Array) -> list[str]:
    """Compute an array, and return the warnings that this process shows meanwhile."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        np.testing.assert_array_equal(x.compute(), A @ A.T)
        eventually(lambda: caught)
    return [str(warning.message) for warning in caught]


def test_scheduler_reports(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    x = array()
    y = x @ x.T
    monkeypatch.setattr(optimizer, "finish", fail)  # which `explain` does not call
    assert dgpu.explain(y).failures == ()
    with caplog.at_level(logging.WARNING, logger="dask_dgpu"):
        assert compute(y) == [TEXT]
    assert [record.message for record in caplog.records if record.name == fallbacks.__name__] == [
        TEXT
    ]
    events = [event for _, event in client.get_events(TOPIC)]
    assert [event["reason"] for event in events if y.name in event["names"]], (y.name, events)
    explanation = dgpu.explain(y)
    assert explanation.failures == ("RuntimeError: a bug",)
    assert str(explanation).splitlines()[0] == (
        "the whole graph: left to Dask: RuntimeError: a bug"
    )
    assert dgpu.explain(array() @ x.T).failures == ()


@pytest.mark.usefixtures("client")
def test_explain_says_why_a_graph_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    x = array()
    y = x @ x.T
    monkeypatch.setattr(GraphOptimizer, "rewrite", fail)
    for _ in range(2):  # before it was computed, and after
        explanation = dgpu.explain(y)
        assert explanation.to_dict()["failures"] == ["RuntimeError: a bug"]
        assert "left to Dask: RuntimeError: a bug" in explanation._repr_html_()
        compute(y)
    with dgpu.enable(on_error="raise"), pytest.raises(RuntimeError, match="a bug"):
        dgpu.explain(y)


@pytest.mark.usefixtures("client")
def test_without_the_scheduler_the_caller_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    x = array()
    monkeypatch.setattr(GraphOptimizer, "rewrite", fail)
    with pytest.warns(UserWarning, match=TEXT):  # when ``compute`` returns, not later
        (x @ x.T).compute(scheduler="threads")
    assert "a bug" in str(dgpu.explain(x @ x.T))


def test_events_are_small(client: Client) -> None:
    names = [f"array-{at}" for at in range(3000)]
    scheduler = client.cluster.scheduler
    with ThreadPoolExecutor(thread_name_prefix=OFFLOADED) as threads:
        threads.submit(fallbacks.report, ValueError("x" * 10**6), names, scheduler.id).result()
    eventually(lambda: "xxx" in client.get_events(TOPIC)[-1][1]["reason"])
    event = client.get_events(TOPIC)[-1][1]
    assert len(event["names"]) == MOST_NAMES
    assert MOST_CHARACTERS < len(event["reason"]) < MOST_CHARACTERS + 10
    warning = pickle.loads(client.get_events(DASK_WARNINGS)[-1][1]["message"])
    assert len(warning) < MOST_CHARACTERS + 100
