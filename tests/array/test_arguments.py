"""How messages show values and suggest names, and what a process lacks."""

from __future__ import annotations

from collections.abc import Iterator

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster

import dask_dgpu as dgpu
from dask_dgpu.arguments import shown, suggestion
from dask_dgpu.environment import facts, transports
from dask_dgpu.environment.settings import read
from tests.array.test_bad_input import X, refuses


def test_names_that_are_far_off() -> None:
    assert suggestion("both", ("backward", "ortho", "forward")) == ""
    assert suggestion("", ("backward",)) == ""


def test_values_are_shown_in_a_line() -> None:
    assert shown(X) == "Array of shape (6, 8)"
    assert shown(np.ones(3)) == "ndarray of shape (3,)"
    assert shown("a" * 1000) == "'" + "a" * 79 + " ..."
    assert shown("a\nb") == r"'a\nb'"
    assert "\n" not in shown([np.ones((9, 9))])
    assert shown(len) == "builtin_function_or_method"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


def test_what_the_workers_lack(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    before = dask.config.get("array_optimize", None)
    for wrong in ({"device": "cuda"}, {"comm": "nccl"}):
        refuses(lambda wrong=wrong: dgpu.enable(client, **wrong), "setting")
    monkeypatch.setattr(transports, "find_spec", {}.get)
    refuses(lambda: dgpu.enable(client, comm="ucx"), "lacks")
    assert dask.config.get("array_optimize", None) is before


def test_what_this_process_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "current_client", lambda: None)
    monkeypatch.setattr(facts, "count_gpus", lambda: 0)
    monkeypatch.setattr(transports, "find_spec", {}.get)
    for wrong in ({"device": "cuda"}, {"comm": "nccl"}, {"comm": "ucx"}):
        refuses(lambda wrong=wrong: facts.gather(None, read(wrong)), "setting")
