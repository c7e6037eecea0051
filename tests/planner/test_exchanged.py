"""Graphs whose functions are exchanged for quicker ones become the same gangs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from dask_dgpu.kernels import scan
from graph_opt.dask_graph import reader
from graph_opt.dask_graph.reader import with_functions
from graph_opt.model.layout import NUMPY

A = np.random.default_rng(12).random((44, 12))
FORMS: dict[str, Callable[[da.Array], da.Array]] = {
    "running sum": lambda x: da.cumsum(x, axis=0),
    "along rows": lambda x: da.cumsum(x, axis=1),
    "products": lambda x: da.cumprod(x + 1, axis=0),
    "of a sum": lambda x: da.cumsum(x - x.mean(axis=0), axis=0).max(axis=1),
}


def outcome(function: Callable[[da.Array], da.Array], when: str) -> tuple[Any, Any]:
    z = function(da.from_array(A, chunks=(5, 12)))
    with dgpu.enable(local_ranks=3, when=when, on_error="raise"):
        return dgpu.explain(z).to_dict()["operations"], z.compute(scheduler="sync")


@pytest.mark.parametrize("when", ["always", "cheaper"])
@pytest.mark.parametrize("form", FORMS)
def test_as_without_them(form: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of NumPy stand for those of CuPy."""
    operations, wanted = outcome(FORMS[form], when)
    calls: list[Any] = []

    def noting(function: Any, *given: Any) -> Any:
        calls.append(function)
        return function(given[0], axis=given[1], dtype=given[2])

    monkeypatch.setattr(scan, "_running", noting)
    exchanging = partial(with_functions, container=NUMPY)
    monkeypatch.setattr(reader, "with_functions", exchanging)
    again, found = outcome(FORMS[form], when)
    assert again == operations
    np.testing.assert_array_equal(found, wanted)
    assert len(calls) >= 9  # one for each block
