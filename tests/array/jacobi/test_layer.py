"""The layer of ``dgpu.jacobi``: its piece, and gangs that fail or are left to Dask."""

from __future__ import annotations

from collections import deque
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.core import flatten

import dask_dgpu as dgpu
from dask_dgpu.array import jacobi as jacobi_module
from dask_dgpu.runtime import tasks
from graph_opt.pieces.stencil import StencilPiece
from tests.array.jacobi.test_jacobi import RHS
from tests.graph_opt.graphs import matches
from tests.support.reference.elimination import direct


class TestLayer:
    """The layer that the optimizer finds."""

    @pytest.fixture
    def layer(self) -> da.Array:
        """Catch what ``jacobi`` builds, before it is computed."""
        caught: list[da.Array] = []

        def catch(u: da.Array) -> bool:
            caught.append(u)
            raise InterruptedError

        rhs = da.from_array(RHS, chunks=(5, 4))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jacobi_module, "_in_a_gang", catch)
            with pytest.raises(InterruptedError):
                dgpu.jacobi(da.zeros_like(rhs), rhs, max_iterations=40)
        return caught[0]

    def test_is_a_legal_graph_that_refuses_to_run(self, layer: da.Array) -> None:
        assert set(flatten(layer.__dask_keys__())) <= set(layer.dask)
        with pytest.raises(jacobi_module.NoGangError, match="expected a gang"):
            dask.compute(layer, optimize_graph=False, scheduler="synchronous")

    def test_is_a_piece(self, layer: da.Array) -> None:
        (piece,) = (p for p in matches(layer).pieces if isinstance(p, StencilPiece))
        assert len(piece.inputs) == 2
        assert piece.computed == (*np.ndindex(3, 3),)
        assert piece.task.iterations == 40
        assert "40 sweeps" in piece.summary


@pytest.mark.slow
def test_a_gang_that_is_left_to_dask_later(
    gangs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rhs = da.from_array(RHS, chunks=5)
    wanted, known = dgpu.jacobi(da.zeros_like(rhs), rhs, max_iterations=25)
    gangs.clear()
    monkeypatch.setattr(jacobi_module, "_in_a_gang", lambda u: True)
    with dask.config.set(array_optimize=None):
        u, info = dgpu.jacobi(da.zeros_like(rhs), rhs, max_iterations=25)
    assert gangs == []
    assert info.iterations == known.iterations == 25
    np.testing.assert_allclose(u.compute(), wanted.compute(), atol=1e-12)


@pytest.mark.slow
def test_a_lost_record(enabled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a gang in another process."""
    monkeypatch.setattr(tasks, "details", deque(maxlen=0))
    rhs = da.from_array(RHS, chunks=5)
    u, info = dgpu.jacobi(da.zeros_like(rhs), rhs, max_iterations=20_000, tol=1e-9)
    assert info.converged
    np.testing.assert_allclose(u.compute(), direct(RHS, 1.0, 0.0), atol=1e-6)
