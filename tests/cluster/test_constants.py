"""On a cluster too, programs that differ in one constant have their own results.

Workers keep opened programs: what a run may change in a function or a value must not live on in
them. As in Dask, each task has its own copy.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client

from tests.support.constants import GROUPS, WAYS, same

# what they compute has NumPy's constants
pytestmark = [pytest.mark.cluster, pytest.mark.parametrize("device", ["cpu"], indirect=True)]

A = np.random.default_rng(3).random((8, 8))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("group", GROUPS)
def test_each_constant_has_its_own_result(client: Client, group: str, way: str) -> None:
    for name, program in GROUPS[group].items():

        def make(x: da.Array, k: int, program: Any = program) -> da.Array:
            return WAYS[way](program, x, k)

        with dask.config.set(array_optimize=da.optimize):
            expected = [make(da.from_array(A, 4), k).compute(scheduler="sync") for k in (0, 1)]
        for persisted in (True, False):
            for k in (0, 1, 0, 1):
                x = da.from_array(A + 0, 4)
                x = client.persist(x) if persisted else x
                try:
                    same(make(x, k).compute(), expected[k])
                except Exception as error:
                    error.add_note(f"{name}, constant {k}, {persisted=}")
                    raise


def own_buffer() -> Callable[[Any], Any]:
    """Return a function that returns its own buffer."""
    buffer = np.empty((4, 4))
    return lambda block: np.multiply(block, 2, out=buffer)


def counter() -> Callable[[Any], Any]:
    """Return a function that counts its calls."""
    calls = [0]

    def count(block: Any) -> Any:
        calls[0] += 1
        return block + calls[0]

    return count


def generator() -> Callable[[Any], Any]:
    """Return a function with a generator of random numbers."""
    rng = np.random.default_rng(5)
    return lambda block: block + rng.random(block.shape)


class Last:
    """A callable that remembers the last block."""

    def __init__(self) -> None:
        self.last = 0.0

    def __call__(self, block: Any) -> Any:
        before, self.last = self.last, block.sum()
        return block + before


STATES = {"own buffer": own_buffer, "counter": counter, "generator": generator, "object": Last}


@pytest.mark.parametrize("make", STATES.values(), ids=STATES)
def test_each_task_has_its_own_function(client: Client, make: Callable[[], Any]) -> None:
    function = make()  # one for all runs

    def program(a: Any) -> da.Array:
        x = da.from_array(a, 4)
        return (x @ x).map_blocks(function, meta=a[:0]) @ x  # without a call for the meta

    tiles = [(slice(i, i + 4), slice(j, j + 4)) for i in (0, 4) for j in (0, 4)]
    for step in range(3):
        a = A + step
        y = a @ a
        for tile in tiles:
            y[tile] = make()(y[tile])
        np.testing.assert_allclose(program(a).compute(), y @ a)


def test_numbers_of_a_seed_are_the_same_in_each_run(client: Client) -> None:
    def sample() -> da.Array:
        x = da.random.default_rng(seed=1).choice(np.arange(9.0), size=(8, 8), chunks=4)
        return x @ x.T

    with dask.config.set(array_optimize=da.optimize):
        expected = sample().compute(scheduler="sync")
    for _ in range(3):
        np.testing.assert_allclose(sample().compute(), expected)


def test_a_module_that_is_sent_again_is_called_as_it_is_now(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "dgpu_model_of_a_user.py"
    for factor in (1.0, 2.0, 3.0):
        path.write_text(f"def scaled(block):\n    return block * {factor}\n")
        importlib.invalidate_caches()
        model = importlib.reload(importlib.import_module(path.stem))
        client.upload_file(str(path))
        a = A + factor
        x = client.persist(da.from_array(a, 4))
        y = (x @ x).map_blocks(model.scaled, dtype=float) @ x
        np.testing.assert_allclose(y.compute(), (a @ a * factor) @ a)


def test_bytes_that_look_like_a_token_stay_as_they_are(client: Client) -> None:
    table = np.frombuffer(b"0123456789abcdef" * 2, np.uint8).copy()

    def shifted(block: Any) -> Any:
        return block + table[3]

    for step in range(3):
        a = A + step
        x = da.from_array(a, 4)
        y = (x.map_blocks(shifted, dtype=float) @ x).map_blocks(shifted, dtype=float) @ x
        expected = ((a + table[3]) @ a + table[3]) @ a
        np.testing.assert_allclose(y.compute(), expected)
