"""What ranks send of products in half precision and without zeros."""

from __future__ import annotations

import numpy as np
import pytest

import dask_dgpu as dgpu
from dask_dgpu.algorithms.summa.wire import Sent
from dask_dgpu.runtime import tasks
from tests.array.matmul.test_sparse_threshold import A, B, X, Y


@pytest.mark.parametrize("ranks", range(1, 8))
def test_value_and_bytes(ranks: int, gangs: list[str]) -> None:
    z = dgpu.matmul(X, Y, strategy="column", sparse_threshold=0.5)
    with dgpu.enable(local_ranks=ranks, on_error="raise"):
        value = z.compute(scheduler="sync")
    np.testing.assert_allclose(value, A @ B, rtol=1e-4, atol=1e-5)
    assert (value.dtype, z.chunks) == ("float32", (X @ Y).chunks)
    assert len(gangs) == 1
    sent = tasks.details[-1][1]
    assert isinstance(sent, Sent)
    assert sent.nbytes <= 0.4 * sent.exact_bytes
    assert (sent.exact_bytes > 0) == (ranks > 1)


def test_halves_are_half_the_bytes() -> None:
    z = dgpu.matmul(X.astype("float64"), Y, strategy="column", wire_dtype="float16")
    with dgpu.enable(local_ranks=2, on_error="raise"):
        z.compute(scheduler="sync")
    sent = tasks.details[-1][1]
    assert isinstance(sent, Sent)
    assert sent.lost == 0
    assert 2 * sent.nbytes < sent.exact_bytes
