"""Operations with message buffers make them smaller if they do not fit in the memory of a rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from dask_dgpu.operations.operation import Cost
from dask_dgpu.runtime.program import Program
from tests.support.programs import costs, even, launch_of

RANKS = 4


def zeros(shape: tuple[int, ...], chunks: Any, dtype: str = "float64") -> da.Array:
    """Return an array of blocks that somebody else has."""
    name = f"x-{shape}"
    chunks = da.core.normalize_chunks(chunks, shape, dtype=dtype)
    blocks = {(name, *at): 0 for at in np.ndindex(*map(len, chunks))}
    return da.Array(blocks, name, chunks, dtype)


def convolution() -> da.Array:
    """Return one that has its blocks merged from tiles."""
    images, weights = zeros((16, 64, 512, 512), (16, 64, 512, 512)), zeros((64, 64, 3, 3), 64)
    return dgpu.conv2d(images, weights, padding=1)


OPERATORS: dict[str, Callable[[], da.Array]] = {
    "rechunk": lambda: zeros((20000, 20000), (20000, 1000)).rechunk((1000, 20000)),
    "transpose": lambda: zeros((20000, 20000), (20000, 1000)).T.rechunk((20000, 1000)),
    "fft": lambda: dgpu.fft.fft2(zeros((20000, 20000), 5000, "complex64") + 1),
    "conv2d": convolution,
}


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    with dgpu.enable(local_ranks=RANKS, when="always", on_error="raise"):
        yield


def program_of(array: da.Array) -> Program:
    return launch_of(array, RANKS, memory_limit="1 PiB").program


def cost_in(program: Program, room: float | None) -> Cost:
    """Return the cost of the only collective of a program in so many bytes."""
    (cost,) = costs(replace(program, room=room), even(program, RANKS), RANKS)
    return cost


@pytest.mark.parametrize("name", OPERATORS)
def test_smaller_buffers_and_no_others_if_they_fit(name: str) -> None:
    program = program_of(OPERATORS[name]())
    quickest = cost_in(program, None)
    assert cost_in(program, quickest.peak_bytes) == quickest
    less = cost_in(program, quickest.peak_bytes - 1)
    least = cost_in(program, 0.0)
    assert least.peak_bytes <= less.peak_bytes < quickest.peak_bytes
    assert least.seconds >= less.seconds >= quickest.seconds
    assert least.seconds < 1.2 * quickest.seconds
    assert cost_in(program, less.peak_bytes).peak_bytes <= less.peak_bytes
