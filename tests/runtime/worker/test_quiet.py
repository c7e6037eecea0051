"""A worker that closes while tasks measure its cluster does not warn of them."""

from __future__ import annotations

import logging

import pytest

from dask_dgpu.runtime.worker.quiet import MEASUREMENT, STATE_MACHINE, ignore_measurements


@pytest.mark.parametrize(("key", "lines"), [(f"{MEASUREMENT}-1f", 0), ("sum-1f", 1)])
def test_only_measurements_end_silently(
    caplog: pytest.LogCaptureFixture, key: str, lines: int
) -> None:
    before = list(STATE_MACHINE.filters)
    try:
        ignore_measurements()
        ignore_measurements()
        assert len(STATE_MACHINE.filters) == len({*before, *STATE_MACHINE.filters})
        with caplog.at_level(logging.WARNING):
            STATE_MACHINE.warning("Async instruction for %s ended with CancelledError", key)
    finally:
        STATE_MACHINE.filters = before
    assert len(caplog.records) == lines
