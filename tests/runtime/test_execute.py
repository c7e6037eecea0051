"""Observers receive the steps of a program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from dask_dgpu.runtime import tasks
from dask_dgpu.runtime.execute import Span

X = da.from_array(np.arange(48.0).reshape(8, 6), chunks=(4, 3))


@pytest.mark.parametrize(
    ("array", "action"), [(X.rechunk((8, 1)), "transfer"), (X @ X.T, "compute")]
)
def test_action_of_a_collective(
    monkeypatch: pytest.MonkeyPatch, array: da.Array, action: str
) -> None:
    spans: list[Span] = []

    class Noting(tasks.Naming):
        @contextmanager
        def step(self, name: str, action: str) -> Iterator[Span]:
            with super().step(name, action) as span:
                spans.append(span)
                yield span

    monkeypatch.setattr(tasks, "Naming", Noting)
    with dgpu.enable(local_ranks=2, when="always", on_error="raise", regions=False):
        array.compute()
    assert [span.action for span in spans] == [action] * 2
    assert all(span.exposed for span in spans)  # each rank has waited, or copied for others
    assert [span.hidden for span in spans] == [0, 0]
