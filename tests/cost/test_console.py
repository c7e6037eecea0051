"""Consoles whose output may be lost."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from dask_dgpu.cost.console import unfailing_console


class Broken(io.StringIO):
    """Raises for everything that is written."""

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [None, closed(), Broken()])
@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_what_cannot_be_written_is_lost(
    stream: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, name, stream)
    console = unfailing_console(stderr=name == "stderr")
    console.print("a line")
    assert not console.is_terminal


def test_other_output_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    unfailing_console().print("a line")
    unfailing_console(stderr=True).print("an error")
    assert capsys.readouterr() == ("a line\n", "an error\n")
