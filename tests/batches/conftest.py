"""What graphs of tasks cost beside their blocks."""

from __future__ import annotations

from typing import Any

import dask.array as da
import pytest

from dask_dgpu.batches import held, whole


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the bytes of the tasks of each graph."""
    found = []

    def counted(result: da.Array) -> Any:
        tasks = held.tasks_of(result)
        found.append(len(tasks) * held.BYTES_PER_TASK)
        return tasks

    monkeypatch.setattr(whole, "tasks_of", counted)
    return found
