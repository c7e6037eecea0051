"""Programs have no names: those of graphs with one structure are equal, byte by byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from tests.support.programs import joined, launch_of, loaded, run_evenly

RANKS = 3


def scaled(factor: float) -> Callable[[Any], Any]:
    return lambda block: block * factor


def placed(block: Any, block_info: Any = None) -> Any:
    return block + block_info[0]["chunk-location"][0]


def numbered(block: Any, block_id: Any = None) -> Any:
    return block * block_id[1]


def filled(x: da.Array) -> da.Array:
    y = x @ x
    y[1:5, 2] = 7.0
    return y


# independent layers are in the order of their names: no two of one operation are in a case
LAYERS: dict[str, Callable[[da.Array], da.Array]] = {
    "products": lambda x: (x @ x.T).dot(x) + 1,
    "tensordot": lambda x: da.tensordot(x, x, axes=(0, 0)),
    "reductions": lambda x: (x - x.mean(axis=0)) / x.std(axis=0) @ x.T,
    "sums": lambda x: x / dgpu.sum(x, 0) + dgpu.mean(x * x),
    "running sums": lambda x: x.cumsum(axis=0),
    "running sums by Blelloch": lambda x: da.cumsum(x, axis=0, method="blelloch"),
    "overlap": lambda x: x.map_overlap(scaled(2.0), depth=1, boundary="reflect", dtype=float),
    "closure": lambda x: x.map_blocks(scaled(3.0), dtype=float) @ x,
    "block_info": lambda x: x.map_blocks(placed, dtype=float) @ x,
    "block_id": lambda x: x.map_blocks(numbered, dtype=float) @ x,
    "places of extremes": lambda x: (x @ x).argmax(axis=0) + x.max(axis=1),
    "fused chain": lambda x: np.tanh((x * 2 + 1).rechunk((9, 3)) - 1).mean(axis=1),
    "slices": lambda x: (x @ x)[1:, ::2].T,
    "concatenation": lambda x: da.concatenate([x @ x, x + 1]),
    "assignment": filled,
    "einsum": lambda x: da.einsum("ij,kj,kl->il", x, x, x),
    "fft": lambda x: abs(dgpu.fft.fft2(x)) + 1,
    "stencil": lambda x: dgpu.stencil(x, iterations=2),
    "loop": lambda x: (x @ x / x.sum()) @ x - x.mean(axis=0),
    "new arrays": lambda x: da.eye(9, chunks=4) @ x + da.ones_like(x),
    "QR": lambda x: abs(da.linalg.qr(x.rechunk((4, -1)))[1]),
    "histogram": lambda x: da.histogram(x, 8, (0, 1))[0],
    "taken": lambda x: x[[3, 8, 1, 4, 3]] @ x,
}


def made(make: Callable[[da.Array], da.Array], seed: int) -> da.Array:
    """Return an array of random data, whose names hash these."""
    with dgpu.enable(local_ranks=RANKS):
        return make(da.from_array(np.random.default_rng(seed).random((9, 9)), chunks=4))


@pytest.mark.parametrize("name", LAYERS)
def test_programs_of_one_structure_are_equal_bytes(name: str) -> None:
    first, second = (launch_of(made(LAYERS[name], seed), RANKS) for seed in range(2))
    assert first.names[-1] != second.names[-1]
    assert first.program.text == second.program.text
    assert first.program.text[1] == b""


@pytest.mark.parametrize("name", LAYERS)
def test_a_program_runs_for_each_graph_of_its_structure(name: str) -> None:
    """The program of one graph, with the names and the data of another."""
    z = made(LAYERS[name], seed=1)
    launch, staged = loaded(z, RANKS)
    assert launch.program == loaded(made(LAYERS[name], seed=0), RANKS)[0].program
    found = joined(run_evenly(launch, staged, RANKS).blocks, z.__dask_keys__())
    np.testing.assert_allclose(found, z.compute(scheduler="sync"), rtol=1e-9, atol=1e-12)


def told(block: Any, text: str) -> Any:
    return block + int(text[-8:], 16)


def test_only_tokens_of_the_user_are_left() -> None:
    """A function may get the name of an array, or any text like a token."""
    token = "0123456789abcdef" * 2
    z = made(lambda x: x.map_blocks(told, f"mine-{token}", dtype=float) @ x, seed=0)
    assert launch_of(z, RANKS).program.text[1].split() == [token.encode()]
