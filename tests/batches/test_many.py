"""Several calls at a time: order, shared operands, failures."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import dask_dgpu as dgpu
from tests.batches.test_run import STACK, A, B, Dataset, close
from tests.support.memory import bounded


def test_results_are_in_order() -> None:
    calls = [(each, B) for each in STACK]
    with bounded(120_000):
        for found, each in zip(dgpu.run_many("matmul", calls), STACK, strict=True):
            close(found, each @ B)


def test_results_as_they_are_completed() -> None:
    calls = [(each, B) for each in STACK]
    found = dict(dgpu.run_many("matmul", calls, as_completed=True))
    assert sorted(found) == list(range(len(STACK)))
    close(found[3], STACK[3] @ B)


def test_an_iterator_may_be_closed() -> None:
    reads = Counting(A)
    results = dgpu.run_many("exp", [(reads,)] * 40, as_completed=True)
    next(results)
    results.close()
    assert reads.count < 40
    assert not [each for each in threading.enumerate() if each.name.startswith("dgpu-call")]


class Counting(Dataset):
    count = 0

    def __getitem__(self, key: Any) -> Any:
        self.count += 1
        return super().__getitem__(key)


def test_common_operands_are_loaded_once() -> None:
    right = Counting(B)
    dgpu.run_many("matmul", [(each, right) for each in STACK])
    assert right.count == 1
    dgpu.run_many("matmul", [(each, right) for each in STACK[:1]])
    assert right.count == 2


def test_one_failure_does_not_lose_the_others() -> None:
    with pytest.raises(dgpu.errors.RunManyError, match="2 of 4 calls failed, first call 1") as got:
        dgpu.run_many("matmul", [(A, B), (A, A), (A, B), (B, B)])
    assert got.value.failed == [1, 3]
    assert isinstance(got.value.__cause__, ValueError)
    close(got.value.results[0], A @ B)
    close(got.value.results[2], A @ B)


def test_results_go_to_out() -> None:
    outs = [np.empty((71, 53)) for _ in range(2)]
    found = dgpu.run_many("matmul", [(A, B), (2 * A, B)], out=outs)
    assert found[1] is outs[1]
    close(outs[1], 2 * A @ B)


def test_no_calls() -> None:
    assert dgpu.run_many("matmul", []) == []


@pytest.mark.parametrize(
    ("calls", "options", "error", "message"),
    [
        (3, {}, TypeError, "expected calls to be a sequence of tuples"),
        ([3], {}, TypeError, r"expected calls\[0\] to be a tuple"),
        ([(A, B)], {"out": []}, ValueError, "expected out to have one array per call, 1, got 0"),
        ([(A, B)], {"as_completed": "yes"}, TypeError, "as_completed"),
    ],
)
def test_bad_arguments(calls: Any, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        dgpu.run_many("matmul", calls, **options)
