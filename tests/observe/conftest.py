"""What ranks of gangs in this process send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dask_dgpu.runtime import tasks
from tests.support.recording import RecordingComm


@pytest.fixture
def ledgers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The ledgers of all ranks of gangs to come."""
    found: list[Any] = []

    def run_recorded(size: int, program: Callable[[Any], Any]) -> Any:
        def recorded(inner: Any) -> Any:
            comm = RecordingComm(inner)
            found.append(comm.ledger)
            return program(comm)

        return run_local(size, recorded)

    run_local = tasks.run_local
    monkeypatch.setattr(tasks, "run_local", run_recorded)
    return found
