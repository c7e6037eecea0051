"""The log at INFO: verdicts on each graph."""

from __future__ import annotations

import logging

import dask.array as da
import pytest

import dask_dgpu as dgpu


def test_verdicts_are_logged_at_info(caplog: pytest.LogCaptureFixture) -> None:
    x = da.ones((8, 8), chunks=4)
    with (
        dgpu.enable(local_ranks=2, when="always", on_error="raise"),
        caplog.at_level(logging.INFO, logger="dask_dgpu"),
    ):
        (x @ x).compute(scheduler="sync")
        (x + 1).compute(scheduler="sync")
        da.einsum("ij,ij->ij", x, x).compute(scheduler="sync")
    first, second, third = [record.getMessage() for record in caplog.records]
    assert first.startswith("graph of ")
    assert "matmul-" in first
    assert first.endswith("run as a gang")
    assert second.endswith("no blocks meet, so all of it is left to Dask")
    assert "is left to Dask: no index of both operands is summed" in third


def test_nothing_is_logged_above(caplog: pytest.LogCaptureFixture) -> None:
    x = da.ones((8, 8), chunks=4)
    with (
        dgpu.enable(local_ranks=2, when="always"),
        caplog.at_level(logging.WARNING, logger="dask_dgpu"),
    ):
        (x @ x).compute(scheduler="sync")
    assert caplog.records == []
