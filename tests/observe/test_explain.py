"""The lines of an explanation with measured steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import dask.array as da
import pytest

import dask_dgpu as dgpu
from dask_dgpu.observe.explain import Explanation
from dask_dgpu.runtime.observer import Step


@pytest.fixture
def product() -> Iterator[Explanation]:
    x = da.ones((6, 6), chunks=3)
    with dgpu.enable(local_ranks=2, when="always", on_error="raise"):
        yield dgpu.explain(x @ x)


@pytest.mark.parametrize(
    ("hidden", "exposed", "lines"),
    [
        (0.25, 1.5, ["mul: 2 s measured, 8 B made; transfers 0.25 s hidden, 1.5 s exposed"]),
        (0.0, 0.0, ["mul: 2 s measured, 8 B made"]),
        (
            None,
            None,
            ["mul: 2 s measured, 8 B made", "transfers: not measured on GPUs without NCCL"],
        ),
    ],
)
def test_transfers_of_a_step(
    product: Explanation, hidden: float | None, exposed: float | None, lines: list[str]
) -> None:
    found = replace(product, runs=((Step("mul", 2.0, 8, hidden, exposed),),))
    shown = str(found).splitlines()
    assert [line for line in shown if line.startswith(("mul: ", "transfers: "))] == lines
    (region,) = found.to_dict()["regions"]
    assert (region["hidden"], region["exposed"]) == ([hidden], [exposed])
