"""Whole graphs: a gang is chosen only if the total says that plain Dask is slower."""

from __future__ import annotations

from collections.abc import Callable

import dask.array as da
import numpy as np
import pytest

from tests.support.clusters import explained

ORDER = np.random.default_rng(0).permutation(16_000)


def square(n: int, chunk: int, dtype: type = float) -> da.Array:
    return da.from_array(np.broadcast_to(dtype(1), (n, n)), chunks=chunk)


@pytest.mark.parametrize("workers", [2, 4, 16])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "make",
    [
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in (
                lambda: square(16_000, 4000, np.float32)[ORDER],
                lambda: square(16_000, 8000)[ORDER].sum(axis=1),
                lambda: square(16_000, 8000)[ORDER].cumsum(axis=0).sum(),
            )
        ),
        lambda: square(2000, 1000).T @ square(2000, 1000),
        lambda: square(2000, 1000) @ square(2000, 1000) @ square(2000, 1000),
        lambda: square(2000, 500).rechunk((2000, 250)),
        lambda: da.fft.fft(square(4000, 500).rechunk((500, 4000))),
        lambda: da.cov(square(4000, 500)),
    ],
)
def test_no_gang_is_slower_than_the_total_of_plain_dask(
    make: Callable[[], da.Array], device: str, workers: int
) -> None:
    found = explained(make(), workers=workers, device=device)
    assert found.totals is not None
    if found.regions:
        assert found.totals.seconds < found.totals.dask_seconds
    else:
        # kernels make copies of views
        assert found.totals.seconds <= 1.05 * found.totals.dask_seconds


def test_no_gang_computes_a_part_of_what_plain_dask_does_more_quickly() -> None:
    x = square(2000, 1000)
    found = explained(x.T @ x, workers=16)
    assert not found.regions
    last = found.operations[-1]
    assert (last.operation, last.by) == ("matmul", "Dask")
    assert last.why.startswith("plain Dask is predicted to be quicker")
    assert found.totals is not None
    assert found.totals.seconds == pytest.approx(found.totals.dask_seconds)


def test_copies_to_gpus_count_in_both_totals() -> None:
    x = square(8000, 1000)
    found = explained(x @ x, workers=2, device="cuda")
    ((_, gang),) = found.regions
    assert gang.host_seconds > 0
    assert found.totals is not None
    assert found.totals.dask_seconds > gang.dask_seconds + gang.host_seconds
