"""Functions compiled at their first call, with a place on disk or without."""

from __future__ import annotations

from typing import Any

from dask_dgpu.kernels.compiled import compiled


def test_without_a_place_on_disk() -> None:
    """As on a system where neither the package nor the user's cache can be written."""
    namespace: dict[str, Any] = {}
    exec("def doubled(x):\n    return 2 * x", namespace)
    doubled = compiled(namespace["doubled"])
    assert doubled(3) == 6
    assert doubled(1.5) == 3.0
