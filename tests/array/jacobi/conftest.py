"""Each test runs without gangs, and in gangs of one and of three ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask
import pytest

import dask_dgpu as dgpu


@pytest.fixture(autouse=True, params=[None, 1, 3], ids="ranks={}".format)
def enabled(request: pytest.FixtureRequest) -> Iterator[Any]:
    with dask.config.set(scheduler="synchronous"):
        if request.param is None:
            yield None
        else:
            with dgpu.enable(local_ranks=request.param, on_error="raise", when="always") as state:
                yield state
