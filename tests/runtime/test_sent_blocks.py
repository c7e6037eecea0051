"""All kinds of our blocks open after Dask's own transfers; otherwise these spoil a connection."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from distributed.protocol.serialize import deserialize, serialize

from dask_dgpu.kernels.sums.partial import partial_sum
from dask_dgpu.runtime.worker.fetch import Handle

RNG = np.random.default_rng(2)
BLOCK = RNG.random((5, 7))
BLOCKS: dict[str, Any] = {
    "the result of a gang's task": Handle(("dgpu-gang-1", 0), 3),
    "the blocks of a gang left to Dask": {("x", 0, 1): BLOCK},
    "the result of a stage task": (("dgpu-stage-0-1", 0), "tcp://127.0.0.1:1234"),
    **{
        f"{method}, {dtype}": partial_sum(BLOCK.astype(dtype), (0,), method, dtype)
        for method in ("compensated", "reproducible")
        for dtype in ("float32", "float64", "complex128")
    },
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_opens_as_it_was(name: str) -> None:
    wanted = pickle.dumps(BLOCKS[name])
    header, frames = serialize(BLOCKS[name], on_error="raise")
    assert pickle.dumps(deserialize(header, [bytes(each) for each in frames])) == wanted
