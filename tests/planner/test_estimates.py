"""Nothing is estimated for gangs that cannot be chosen."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

import dask
import dask.array as da
import numpy as np
import pytest
from dask import delayed

import dask_dgpu as dgpu
from tests.support.clusters import described, explained, on_gpus

RNG = np.random.default_rng(7)
V, S = RNG.random(40), RNG.random((12, 12))
ORDER = RNG.permutation(40)
X, Y, Z = (da.from_array(*each) for each in ((V, 4), (S, (4, 3)), (S, 4)))


def stored() -> da.Array:
    y = X.copy()
    y[3:25] = 0.0
    return y


def from_functions() -> da.Array:
    return da.concatenate([da.from_delayed(delayed(np.ones)(4), (4,), "f8") for _ in range(5)])


ONE_PROCESS = "blocks of one process need no gang"
PROGRAMS: dict[str, Callable[[], da.Array]] = {
    "elementwise": lambda: (Y * 2 + 1) / (Y + 3),
    "transpose": lambda: Z + Z.T,
    "taken": lambda: X[ORDER],
    "slices": lambda: Y[::-1, 2:11],
    "sum": lambda: X.sum(),
    "spread": lambda: Y.std(axis=1),
    "running sum": lambda: X.cumsum(axis=0),
    "scan": lambda: da.cumsum(X, axis=0, method="blelloch"),
    "user": lambda: Y.map_blocks(lambda block: block + 1).sum(axis=0),
    "joined": lambda: da.concatenate([Y, Y]),
    "assigned": stored,
    "delayed": from_functions,
    "masked": lambda: X[X > 0.5],
    "largest": lambda: da.topk(X, 5),
    "qr": lambda: da.linalg.qr(da.from_array(RNG.random((40, 3)), chunks=(8, 3)))[1],
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_process_without_collectives(program: str, estimates: Counter[str]) -> None:
    z = PROGRAMS[program]()
    wanted = z.compute(scheduler="sync")
    with dgpu.enable(on_error="raise"):
        np.testing.assert_array_equal(z.compute(scheduler="sync"), wanted)
    assert estimates == {}
    with dgpu.enable(on_error="raise", when="always"):
        np.testing.assert_allclose(z.compute(scheduler="sync"), wanted, rtol=1e-14)


def test_one_process_with_a_collective(estimates: Counter[str]) -> None:
    with dgpu.enable(on_error="raise"):
        dask.compute(X[ORDER], Z @ Z, scheduler="sync")
    assert estimates["predict"] > 0  # the product may be quicker
    assert estimates["form_of"] == 0  # no gang takes elements


def test_one_process_is_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    with dgpu.enable(on_error="raise"), caplog.at_level(logging.INFO, logger="dask_dgpu"):
        found = dgpu.explain(X[ORDER] + 1)
        X[ORDER].compute(scheduler="sync")
    reasons = {each.operation: each.why for each in found.operations}
    assert reasons["x[...]"] == ONE_PROCESS
    assert reasons["x + 1"] == "no blocks meet"
    assert caplog.messages[-1].endswith(f"{ONE_PROCESS}, so all of it is left to Dask")


def annotated() -> da.Array:
    with dask.annotate(retries=2):
        return X[ORDER]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (
            lambda: X.map_blocks(lambda block: block + 1)[ORDER],
            "functions of users take unknown time",
        ),
        (annotated, "its layers are annotated"),
        (lambda: on_gpus(da.from_array(V, 4)[ORDER]), "blocks are not those of a gang on cpu"),
    ],
)
def test_a_cluster_for_which_the_verdict_is_known(
    make: Callable[[], da.Array], why: str, estimates: Counter[str]
) -> None:
    with described():
        dask.optimize(make())
    assert estimates == {}
    assert why in {each.why for each in explained(make()).operations}


def test_a_cluster_that_may_run_a_gang(estimates: Counter[str]) -> None:
    with described():
        dask.optimize(X[ORDER])
    assert estimates["form_of"] > 0
