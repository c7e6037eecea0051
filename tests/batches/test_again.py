"""Batches that run out of memory: the rest is computed in smaller ones, once."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from dask.utils import format_bytes

import dask_dgpu as dgpu
from dask_dgpu.errors import OutOfMemoryError
from tests.batches.test_run import A, B, Dataset, close
from tests.support.memory import bounded

STACK = np.random.default_rng(2).random((23, 31))


class Exhausted(Dataset):
    """Raises for reads of more than ``most`` elements after the first ``good`` reads."""

    def __init__(self, values: Any, good: int, most: int) -> None:
        super().__init__(values)
        self.good = good
        self.most = most
        self.reads = 0
        self.largest = 0

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        self.reads += 1
        self.largest = max(self.largest, part.size)
        if self.reads > self.good and part.size > self.most:
            raise MemoryError(f"{part.size} elements")
        return part


class Counted(Dataset):
    """Counts how often each element is written."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        super().__init__(np.zeros(shape, dtype))
        self.counts = np.zeros(shape, int)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.counts[key] += 1


def largest(op: str, *args: Any) -> int:
    """Return the elements of the largest part of the first operand."""
    return int(np.prod(dgpu.plan(op, *args).parts[0].shape))


@pytest.mark.slow
@pytest.mark.parametrize("good", [0, 1, 3])
def test_the_rest_goes_in_smaller_batches(good: int) -> None:
    out = Counted((71, 53), float)
    with bounded(40_000):
        x = Exhausted(A, good, largest("matmul", A, B) - 1)
        assert dgpu.plan("matmul", A, B).batches > 3
        dgpu.run("matmul", x, B, out=out)
    close(out.values, A @ B)
    assert (out.counts == 1).all()


def test_an_open_sum_begins_again() -> None:
    with bounded(9_000):
        assert dgpu.plan("sum", A, axis=0).batches > 4
        x = Exhausted(A, 3, largest("sum", A) * 2 // 3)
        close(dgpu.run("sum", x, axis=0), A.sum(axis=0))
        assert x.reads > dgpu.plan("sum", A, axis=0).batches


@pytest.mark.parametrize("good", [1, 9])
def test_a_pass_in_place_transforms_each_line_once(good: int) -> None:
    with bounded(10_000):
        plan = dgpu.plan("fft2", STACK)
        assert plan.passes == 2
        x = Exhausted(STACK, good, largest("fft2", STACK) // 2)
        close(dgpu.run("fft2", x), np.fft.fft2(STACK))


def test_a_second_failure_is_one_sentence() -> None:
    out = np.full((71, 53), -1.0)
    with bounded(40_000):
        plan = dgpu.plan("matmul", A, B)
        x = Exhausted(A, 1, 60)
        with pytest.raises(dgpu.errors.DgpuError, match="ran out of memory twice: with") as caught:
            dgpu.run("matmul", x, B, out=out)
    assert "planned on each device, and with" in str(caught.value)
    (note,) = caught.value.__notes__
    written = int(note.split()[1])
    assert abs((out != -1).all(axis=1).sum() - written * plan.rows) <= written


def test_batches_cannot_be_smaller() -> None:
    with bounded(1):
        least = dgpu.plan("matmul", A, B).peak_bytes
    with (
        bounded(1.5 * least),
        pytest.raises(OutOfMemoryError, match="and cannot be cut to half of it"),
    ):
        dgpu.run("matmul", Exhausted(A, 3, 0), B)


def centred(x: Any) -> Any:
    return x - x.mean()


def test_a_function_goes_once_more_in_smaller_blocks() -> None:
    with bounded(200_000):
        x = Exhausted(A, 3, A.size // dgpu.plan(centred, A).batches)
        close(dgpu.run(centred, x), A - A.mean())
        x = Exhausted(A, 1, 0)
        with pytest.raises(dgpu.errors.DgpuError, match=r"ran out of memory twice: with \d"):
            dgpu.run(centred, x)


def large(x: Any) -> Any:
    return x[x > 0.5]


def test_a_result_of_unknown_shape_goes_once_more_in_smaller_blocks() -> None:
    seen, out = Exhausted(A, 0, A.size), np.empty((A > 0.5).sum())
    with bounded(200_000):
        dgpu.run(large, seen)
        assert dgpu.run(large, Exhausted(A, 0, seen.largest - 1), out=out) is out
        np.testing.assert_array_equal(np.sort(out), np.sort(large(A)))
        with pytest.raises(OutOfMemoryError, match="ran out of memory twice: with"):
            dgpu.run(large, Exhausted(A, 0, 0))


def test_an_error_for_lack_of_memory_has_the_planned_bytes() -> None:
    with bounded(200_000):
        for op, args in ((large, ()), (centred, ()), ("matmul", (B,))):
            x = Exhausted(A, 0, 0)
            first = dgpu.plan(op, x, *args).peak_bytes
            with pytest.raises(MemoryError, match="ran out of memory twice: with") as caught:
                dgpu.run(op, x, *args)
            assert isinstance(caught.value, OutOfMemoryError)
            assert caught.value.first_bytes == first
            assert 0 < caught.value.second_bytes < first
            assert isinstance(caught.value.__cause__, MemoryError)


@pytest.mark.parametrize("function", [centred, large])
def test_the_smallest_blocks_are_not_tried_twice(function: Any) -> None:
    x = Exhausted(np.ones(1), 0, 0)
    planned = dgpu.plan(function, x).peak_bytes
    with pytest.raises(OutOfMemoryError) as caught:
        dgpu.run(function, x)
    (number,) = re.findall(r"[\d.]+ \w*B\b", str(caught.value))
    assert number == format_bytes(planned)
    assert "cannot be cut to half of it" in str(caught.value)
    assert x.reads == 1


@pytest.mark.parametrize("limit", [200_000, 20_000])
def test_blocks_are_loaded_again_only_if_they_cannot_be_kept(limit: int) -> None:
    x = Exhausted(np.ones((200, 10)), 1 << 60, 0)
    with bounded(limit):
        blocks = dgpu.plan(centred, x).batches
        np.testing.assert_array_equal(dgpu.run(centred, x), np.zeros((200, 10)))
    assert x.reads == (blocks if limit == 200_000 else 2 * blocks)


def test_a_write_that_runs_out_of_memory_is_not_repeated() -> None:
    class Full(Dataset):
        def __setitem__(self, key: Any, value: Any) -> None:
            raise MemoryError("compressing")

    with bounded(40_000), pytest.raises(MemoryError, match="compressing"):
        dgpu.run("matmul", A, B, out=Full(np.empty((71, 53))))
