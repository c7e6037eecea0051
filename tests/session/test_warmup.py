"""A warm-up connects and compiles on all workers, and leaves nothing but its last line."""

from __future__ import annotations

import io
import sys
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from dask_dgpu.errors import DgpuError

X = da.ones((12, 12), chunks=4)


@pytest.mark.slow
def test_usual_operations_run_as_gangs(
    gangs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with dgpu.enable(local_ranks=3, on_error="raise"):
        before = dask.config.get("array_optimize")
        dgpu.warmup()
        assert dask.config.get("array_optimize") is before
    names = {name.partition("-")[0] for name in gangs}
    assert {"matmul", "fft2", "rechunk", "stencil"} <= names
    assert len(gangs) == 14
    assert capsys.readouterr().out.strip().splitlines()[-1].startswith("warm-up  done")


def test_examples_replace_the_usual(gangs: list[str]) -> None:
    with dgpu.enable(local_ranks=3, on_error="raise"):
        dgpu.warmup(None, X @ X)
    assert [name.partition("-")[0] for name in gangs] == ["matmul"]


def test_a_closed_output_gets_no_bar(gangs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    with dgpu.enable(local_ranks=3, on_error="raise"):
        dgpu.warmup(None, X @ X)
    assert len(gangs) == 1


def test_an_error_of_an_example_passes_through() -> None:
    def fail(block: Any) -> Any:
        raise ZeroDivisionError("an example")

    y = X.map_blocks(fail, meta=np.empty((0, 0)))
    with dgpu.enable(local_ranks=2), pytest.raises(ZeroDivisionError, match="an example"):
        dgpu.warmup(None, y)


def test_bad_arguments() -> None:
    with pytest.raises(DgpuError, match="not enabled"):
        dgpu.warmup()
    with dgpu.enable():
        with pytest.raises(TypeError, match="expected each of examples to be a Dask collection"):
            dgpu.warmup(None, np.ones(3))
        with pytest.raises(TypeError, match="client"):
            dgpu.warmup(X)  # type: ignore[arg-type]
