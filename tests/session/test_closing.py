"""Closing: a cluster that is slow, or whose workers still connect, closes without an error."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster

import dask_dgpu as dgpu
from dask_dgpu.comm import bootstrap
from dask_dgpu.session.collector import LEAST

pytestmark = pytest.mark.cluster


@pytest.fixture(autouse=True)
def disabled_in_the_end() -> Iterator[None]:
    yield
    dgpu.disable()
    # Dask's own clients leave it set if they are not closed in the reverse order
    dask.config.config.pop("scheduler", None)


def test_a_cluster_closes_while_its_workers_connect(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connecting = threading.Event()

    def connect(*args: Any, lifetime: Any, **kwargs: Any) -> Any:
        connecting.set()
        lifetime.wait_for(lambda: False)

    monkeypatch.setattr(bootstrap, "connect", connect)
    client = Client(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0")
    with caplog.at_level(logging.WARNING), dgpu.enable(client):
        assert connecting.wait(10)
        client.close()
    names = {thread.name for thread in threading.enumerate()}
    assert "dask-dgpu" not in names
    assert "rank" not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("slow", ["client", "cluster"])
def test_a_slow_end_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, slow: str
) -> None:
    kind: Any = Client if slow == "client" else LocalCluster
    close = kind._close

    async def close_slowly(self: Any, *args: Any, **kwargs: Any) -> None:
        await asyncio.sleep(60)

    client = dgpu.start(1, device="cpu", processes=False)
    cluster: Any = client.cluster
    assert dask.config.get("array_optimize", None) is not None
    monkeypatch.setattr(kind, "_close", close_slowly)
    client.close(timeout=0.2)
    assert f"the {slow} is not closed after 0.2" in caplog.text
    assert dask.config.get("array_optimize", None) is None
    monkeypatch.setattr(kind, "_close", close)
    client.close()
    assert client.status == cluster.status.name == "closed"


def test_an_early_end_is_one_too() -> None:
    """What was enabled since is left alone by a second end."""
    thresholds = gc.get_threshold()
    client = dgpu.start(1, device="cpu", processes=False)
    assert gc.get_threshold() == LEAST
    client.shutdown()
    assert dask.config.get("array_optimize", None) is None
    assert gc.get_threshold() == thresholds
    with dgpu.enable() as enabled:
        client.close()
        assert dask.config.get("array_optimize") == enabled.optimizer


def started() -> Client:
    return dgpu.start(1, device="cpu", processes=False)


def settings_now() -> Any:
    return dask.config.get("array_optimize", None)


@pytest.mark.parametrize("order", [(1, 0), (0, 1)])
def test_two_clusters_are_enabled_each_while_open(order: tuple[int, int]) -> None:
    thresholds = gc.get_threshold()
    first = started()
    enabled = settings_now()
    both = first, started()
    other = settings_now()
    assert other != enabled
    both[order[0]].close()
    assert settings_now() == (enabled if order[0] == 1 else other)
    assert gc.get_threshold() == LEAST
    both[order[1]].close()
    assert settings_now() is None
    assert gc.get_threshold() == thresholds


def test_the_cluster_before_last_stays_enabled() -> None:
    first = started()
    enabled = settings_now()
    second = started()
    third = started()
    last = settings_now()
    second.close()
    assert settings_now() == last
    third.close()
    assert settings_now() == enabled
    first.close()
    assert settings_now() is None


def test_closing_leaves_what_was_enabled_on_another_cluster() -> None:
    with Client(n_workers=1, processes=False, dashboard_address=":0") as client:
        with dgpu.enable(client) as outer:
            with started():
                assert settings_now() != outer.optimizer
            assert settings_now() == outer.optimizer
        with started(), dgpu.enable(client):
            pass
        mine = started()
        enabled = dgpu.enable(client)
        mine.close()
        assert settings_now() == enabled.optimizer


def test_closing_disables_what_the_user_changed_since() -> None:
    with started():
        dgpu.enable(when="always", fft_output_layout="input")
    assert settings_now() is None


SCRIPT = """
import dask_dgpu as dgpu
if __name__ == "__main__":
    with dgpu.start(2, device="cpu") as client:
        pass
    print("the last line")
"""


@pytest.mark.slow
@pytest.mark.cluster
def test_a_script_that_ends_at_once_ends_quietly(tmp_path: Path) -> None:
    script = tmp_path / "short.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the last line\n"
    # a heartbeat of Dask's own may meet the closed scheduler, with a traceback of Dask alone
    lines = [line for line in done.stderr.splitlines() if "site-packages" not in line]
    assert not [line for line in lines if "dask_dgpu" in line], done.stderr
    assert "terminate called" not in done.stderr
