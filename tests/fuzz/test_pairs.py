"""Programs that differ in one place have their own results, whichever of them comes first.

``pytest tests/fuzz --pairs 3000`` for a long run; ``--seed N --pairs 1`` for one pair again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dask_dgpu as dgpu
from tests.fuzz.pairs import Pair, draw, other_literal
from tests.fuzz.ways import FALLBACK, quiet

Run = Callable[[Pair, int, bool], list[Any]]
"""Computes program 0 or 1 of a pair; its inputs are persisted, or not."""


def by_client(client: Client) -> Run:
    def run(pair: Pair, k: int, persisted: bool) -> list[Any]:
        inputs: list[Any] = []  # if nobody holds them, Dask may lose them (plain Dask too)

        def place(x: Any) -> Any:
            inputs.append(client.persist(x) if persisted else x)
            return inputs[-1]

        # what overlaps are trimmed from may depend on chunks
        with quiet(), dgpu.enable(client, **FALLBACK, fft_output_layout="input"):
            return [*client.compute(pair.build(k, place), sync=True)]

    return run


def failure(pair: Pair, run: Run) -> str | None:
    """Compute both programs in turn; say what is wrong, if anything is."""
    first = pair.seed % 2
    for persisted in (False, True):
        order = (first, 1 - first, first)
        for at, k in enumerate(order):
            try:
                wrong = pair.wrong(k, [np.asarray(each) for each in run(pair, k, persisted)])
            except Exception as error:
                wrong = repr(error)
            if wrong is not None:
                return f"program {k}, number {at} of {order}, {persisted=}: {wrong}"
        first = 1 - first
    return None


@pytest.mark.slow
@pytest.mark.cluster
def test_pair(pair_seed: int, fuzz_client: Client) -> None:
    pair = draw(pair_seed)
    wrong = failure(pair, by_client(fuzz_client))
    if wrong is not None:
        pytest.fail(f"seed {pair.seed}: {wrong}\n{pair.text}", pytrace=False)


@pytest.mark.parametrize("seed", range(6))
def test_the_result_of_the_other_program_is_found(seed: int) -> None:
    """Somebody who keeps the first result is told so."""
    pair, kept = draw(seed), {}

    def run(pair: Pair, k: int, persisted: bool) -> list[Any]:
        return [*kept.setdefault(persisted, pair.expected[k])]

    wrong = failure(pair, run)
    assert wrong is not None
    order = f"program {1 - seed % 2}, number 1 of "
    assert wrong.startswith(order)
    assert "persisted=False: result " in wrong


def test_one_literal_differs() -> None:
    rng = np.random.default_rng(1)
    found = {other_literal("da.sum(v1, axis=0, keepdims=True)", rng) for _ in range(100)}
    kept = {f"da.sum(v1, axis={axis}, keepdims=True)" for axis in ("-0.0", "1", "0", "0.5", "0.0")}
    assert found == kept | {f"da.sum(v1, axis=0, keepdims={each})" for each in ("False", "1")}
    assert other_literal("v1 + v2", rng) is None
