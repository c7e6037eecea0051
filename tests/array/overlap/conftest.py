"""Copies of blocks into rooms with ghost cells."""

from __future__ import annotations

import pytest

from dask_dgpu.algorithms.halo.rank import Exchange


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """One entry for each time that a rank has copied its blocks."""
    found: list[bool] = []
    original = Exchange.copy_blocks

    def copy_blocks(self: Exchange) -> None:
        found.append(True)
        original(self)

    monkeypatch.setattr(Exchange, "copy_blocks", copy_blocks)
    return found
