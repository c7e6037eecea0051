"""When work is issued, recorded and replayed, on streams that only take notes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

MODULE = "dask_dgpu.kernels.device.replay"


class SpoiledError(RuntimeError):
    """What CUDA says of a recording during which another thread has waited for the device."""


class Stream:
    """Notes what is done on it."""

    spoiled = False

    def __init__(self, done: list[str]) -> None:
        self.done = done

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.done.append("left")

    def begin_capture(self) -> None:
        self.done.append("begin")

    def end_capture(self) -> Any:
        self.done.append("end")
        if Stream.spoiled:
            raise SpoiledError
        return SimpleNamespace(launch=lambda stream: self.done.append("launch"))


@pytest.fixture
def done() -> list[str]:
    return []


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch, done: list[str]) -> Iterator[Any]:
    cupy: Any = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(
        Stream=lambda non_blocking: Stream(done),
        get_current_stream=lambda: None,
        runtime=SimpleNamespace(CUDARuntimeError=SpoiledError),
        driver=SimpleNamespace(CUDADriverError=SpoiledError),
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    monkeypatch.setattr(Stream, "spoiled", False)
    yield importlib.import_module(MODULE).Replay()
    del sys.modules[MODULE]


def test_issued_recorded_replayed(replay: Any, done: list[str]) -> None:
    def work() -> int:
        done.append("work")
        return 7

    assert [replay(work) for _ in range(4)] == [7] * 4
    assert done == ["work", "begin", "work", "end", "left", "launch", "launch", "launch"]
    assert replay.recorded


def test_a_spoiled_recording_is_issued_instead(replay: Any, done: list[str]) -> None:
    def work() -> int:
        done.append("work")
        return 7

    replay(work)
    Stream.spoiled = True
    for _ in range(2):
        done.clear()
        assert replay(work) == 7
        assert done == ["begin", "work", "end", "left", "work"]
        assert not replay.recorded
    Stream.spoiled = False
    assert replay(work) == 7
    assert done[-2:] == ["left", "launch"]
    assert replay.recorded


def test_other_errors_are_the_callers(replay: Any, done: list[str]) -> None:
    replay(lambda: None)
    with pytest.raises(ZeroDivisionError):
        replay(lambda: 1 / 0)
    assert done == ["begin", "end", "left"]
