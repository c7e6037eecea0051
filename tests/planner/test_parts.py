"""Collectives that do not fit: several gangs, one after another, each for a part of the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import groupby
from math import prod
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu

ALWAYS = {"on_error": "raise", "when": "always", "memory_safety_margin": 0}
RNG = np.random.default_rng(6)
A, B = RNG.random((77, 52)), RNG.random((52, 91))
UNEVEN = ((20, 1, 30, 26), (13, 39))
X = da.from_array(A, chunks=(11, 26))
Y = da.from_array(B, chunks=(26, 7))
"""7 and 13 blocks, primes."""

Make = Callable[[], da.Array]

PRODUCTS: dict[str, tuple[Make, Any]] = {
    "primes": (lambda: X @ Y, A @ B),
    "uneven": (lambda: da.from_array(A, chunks=UNEVEN) @ da.from_array(B, (UNEVEN[1], 30)), A @ B),
    "tall": (lambda: da.from_array(A, chunks=(5, 52)) @ da.from_array(B, chunks=(52, 31)), A @ B),
    "wide": (lambda: da.from_array(A, chunks=(77, 9)) @ da.from_array(B, chunks=(9, 11)), A @ B),
    "persisted": (lambda: (X + 1j).persist(scheduler="sync") @ Y, (A + 1j) @ B),
}


def share_of(z: da.Array, ranks: int) -> float:
    """Return the bytes of inputs and result on a rank if all have the same."""
    with dgpu.enable(local_ranks=ranks, regions=False, **ALWAYS):
        region, _ = dgpu.explain(z).regions[-1]
    (piece,) = region.pieces
    arrays = (piece.output, piece.computed), *region.inputs
    return sum(x.itemsize * prod(x.block_shape(at)) for x, ids in arrays for at in ids) / ranks


def close(found: Any, wanted: Any) -> None:
    scale = max(1.0, float(abs(wanted).max()))
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12 * scale)


def tasks_of(z: da.Array) -> list[Any]:
    (graph,) = dask.optimize(z)
    return list(graph.__dask_graph__())


def check_parts(z: da.Array, wanted: Any, room: int, programs: list[Any]) -> int:
    """Compute an array in parts that fit, one after another; return the number of parts."""
    found = dgpu.explain(z)
    ((region, prediction),) = found.regions
    assert found.declined == ()
    assert prediction.parts > 1
    assert prediction.peak_bytes <= room
    assert len(region.members) == 1
    programs.clear()
    close(z.compute(scheduler="sync"), wanted)
    assert len(programs) == prediction.parts
    # each block, or each term of it, is computed once, in one of the parts
    made = [(name, at) for each in programs for name, blocks in each.outputs for at in blocks]
    assert len({*made}) == len(made)
    terms = Counter(index for _, index in made)
    wanted_blocks = [index for _, blocks in region.wanted for index in blocks]
    assert sorted(terms) == sorted(wanted_blocks)
    assert len({*terms.values()}) == 1
    own = [key for key in tasks_of(z) if str(key[0]).startswith("dgpu-")]
    additions = len(made) - len(wanted_blocks)
    assert len(own) + len(made) + additions == prediction.tasks
    close(z.compute(scheduler="threads"), wanted)
    return prediction.parts


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("form", PRODUCTS)
def test_products(form: str, ranks: int, programs: list[Any]) -> None:
    make, wanted = PRODUCTS[form]
    z = make()
    room = int(share_of(z, ranks) * 0.99)
    with dgpu.enable(local_ranks=ranks, memory_limit=room, regions=False, **ALWAYS):
        check_parts(z, wanted, room, programs)


@pytest.mark.slow
def test_less_room_takes_more_parts(programs: list[Any]) -> None:
    parts = []
    for share in (0.9, 0.6, 0.3):
        room = int(share_of(X @ Y, 1) * share)
        with dgpu.enable(local_ranks=1, memory_limit=room, **ALWAYS):
            parts.append(check_parts(X @ Y, A @ B, room, programs))
    assert parts[0] < parts[1] < parts[2]


def test_what_fits_is_planned_once(estimates: Counter[str]) -> None:
    with dgpu.enable(local_ranks=2, memory_limit="1 MiB", **ALWAYS):
        (X @ Y).compute(scheduler="sync")
    assert estimates["predict"] == 1


def test_a_result_that_fits_no_rank_is_left_to_dask(programs: list[Any]) -> None:
    with dgpu.enable(local_ranks=2, memory_limit=1000, **ALWAYS):
        (declined,) = dgpu.explain(X @ Y).declined
        assert "on a rank and 0.98 kiB may be used" in declined.reason
        close((X @ Y).compute(scheduler="sync"), A @ B)
    assert programs == []


def test_unwanted_blocks_are_not_computed(programs: list[Any]) -> None:
    z = (X @ Y)[:30, :40]
    room = int(share_of(z, 1) * 0.8)
    with dgpu.enable(local_ranks=1, memory_limit=room, **ALWAYS):
        close(z.compute(scheduler="sync"), (A @ B)[:30, :40])
    made = {index for each in programs for _, blocks in each.outputs for index in blocks}
    assert len(programs) > 1
    assert made == {(i, j) for i in range(3) for j in range(6)}


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_two_arrays_read_a_product(scheduler: str, programs: list[Any]) -> None:
    y = X @ Y
    room = int(share_of(y, 2) * 0.99)
    with dgpu.enable(local_ranks=2, memory_limit=room, **ALWAYS):
        first, second, third = dask.compute(y + 1, y.sum(axis=0), y, scheduler=scheduler)
    close(first, A @ B + 1)
    close(second, (A @ B).sum(axis=0))
    close(third, A @ B)
    assert [len(each.program.nodes) for each in programs if y.name == each.names[2]].count(1) > 1


def test_parts_are_staged_one_after_another(staging: list[str]) -> None:
    """No block of a part is staged before the part before has ended."""
    room = int(share_of(X @ Y, 1) * 0.7)
    with dgpu.enable(local_ranks=1, memory_limit=room, **ALWAYS):
        ((_, prediction),) = dgpu.explain(X @ Y).regions
        close((X @ Y).compute(scheduler="threads", num_workers=4), A @ B)
    found = [len(list(group)) for key, group in groupby(staging) if key == "stage"]
    assert len(found) == prediction.parts > 1


def test_explained() -> None:
    room = int(share_of(X @ Y, 2) * 0.99)
    with dgpu.enable(local_ranks=2, memory_limit=room, **ALWAYS):
        found = dgpu.explain(X @ Y)
        (operation,) = [each for each in found.operations if each.operation == "matmul"]
    ((_, prediction),) = found.regions
    text = f"in {prediction.parts} parts"
    assert operation.by == "gang"
    assert operation.why.startswith(f"{text}: ")
    assert text in str(found)
    assert f"matmul  {prediction.parts} of 77 x 49" in str(found.memory)
    assert found.memory.feasible
    assert found.memory.peak_bytes == prediction.peak_bytes <= room
    assert [gang["parts"] for gang in found.memory.to_dict()["gangs"]] == [prediction.parts]
    assert [region["parts"] for region in found.to_dict()["regions"]] == [prediction.parts]


def test_the_cost_model_decides() -> None:
    """Parts of small blocks take longer than the few tasks of plain Dask."""
    z = X.rechunk(52) @ Y.rechunk(52)
    room = int(share_of(z, 1) * 0.8)
    settings = ALWAYS | {"when": "cheaper", "regions": False}
    with dgpu.enable(local_ranks=1, memory_limit=room, **settings):
        declined = dgpu.explain(z).declined[-1]
    assert "plain Dask is predicted to be quicker" in declined.reason


TALL, STACK = RNG.random((203, 6)), RNG.random((7, 29, 6))
WHOLE = RNG.integers(-99, 100, (203, 6))

Blocks = Callable[..., da.Array]

SUMS: dict[str, tuple[Callable[[Blocks], da.Array], Any, int]] = {
    "gram": (lambda of: (x := of(TALL, (29, 6))).T @ x, TALL.T @ TALL, 7),
    "dot": (lambda of: (x := of(TALL, (41, 6))).T.dot(x), TALL.T @ TALL, 5),
    "options": (
        lambda of: dgpu.matmul((x := of(TALL, (29, 6))).T, x, strategy="inner"),
        TALL.T @ TALL,
        7,
    ),
    "two axes": (
        lambda of: da.tensordot(x := of(STACK, (1, 10, 6)), x, axes=((0, 1), (0, 1))),
        np.tensordot(STACK, STACK, axes=((0, 1), (0, 1))),
        7,
    ),
    "batches": (
        lambda of: da.matmul((x := of(STACK, (7, 5, 6))).transpose(0, 2, 1), x),
        STACK.transpose(0, 2, 1) @ STACK,
        6,
    ),
    "repeated": (
        lambda of: da.matmul(of(TALL.T[None], (1, 6, 29)), of(np.stack([TALL, -TALL]), (2, 29, 6))),
        TALL.T @ np.stack([TALL, -TALL]),
        7,
    ),
    "integers": (lambda of: (x := of(WHOLE, (29, 6))).T @ x, WHOLE.T @ WHOLE, 7),
}
"""Products with one block as their result, and the number of blocks along the sum."""


def undeclared(x: Any, chunks: Any) -> da.Array:
    """Return an array whose blocks have fewer elements along the sum than Dask declares."""
    axis = next(k for k, (n, size) in enumerate(zip(x.shape, chunks, strict=True)) if n > size > 1)
    every_other = (*(slice(None),) * axis, slice(None, None, 2))
    return da.from_array(x, chunks=chunks).map_blocks(lambda block: block[every_other])


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("form", SUMS)
def test_a_sum_has_terms(form: str, ranks: int, programs: list[Any]) -> None:
    make, wanted, blocks = SUMS[form]
    z = make(da.from_array)
    room = int(share_of(z, ranks) * 0.75)
    with dgpu.enable(local_ranks=ranks, memory_limit=room, regions=False, **ALWAYS):
        parts = check_parts(z, wanted, room, programs)
        ((_, prediction),) = dgpu.explain(z).regions
    assert 1 < parts <= blocks
    assert f", {parts} terms a block: " in prediction.text


@pytest.mark.parametrize("inner", [(6, 0), (0, 6), (3, 0, 3), (0, 0, 2, 4), (1, 5, 0)])
@pytest.mark.parametrize("share", [0.99, 0.7, 0.5])
def test_empty_blocks_along_a_sum(inner: tuple[int, ...], share: float) -> None:
    x = da.from_array(TALL, chunks=((100, 103), inner))
    room = int(share_of(x @ x.T, 1) * share)
    with dgpu.enable(local_ranks=1, memory_limit=room, regions=False, **ALWAYS):
        close((x @ x.T).compute(scheduler="sync"), TALL @ TALL.T)


@pytest.mark.parametrize("form", SUMS)
def test_terms_of_undeclared_blocks_are_left_to_dask(form: str) -> None:
    make, whole, _ = SUMS[form]
    z, settings = make(undeclared), ALWAYS | {"on_error": "fallback"}
    wanted = z.compute(scheduler="sync")
    assert abs(wanted - whole).max() > 1
    room = int(share_of(z, 1) * 0.75)
    with dgpu.enable(local_ranks=1, memory_limit=room, regions=False, **settings):
        assert dgpu.explain(z).regions[0][1].parts > 1
        with pytest.warns(UserWarning, match="left a gang to Dask"):
            close(z.compute(scheduler="sync"), wanted)


T = RNG.random((22, 35, 26))
U = da.from_array(T, chunks=(2, 7, 13))
V = RNG.random((26, 35, 17))

OTHERS: dict[str, tuple[Make, Any]] = {
    "contract": (
        lambda: da.tensordot(U, da.from_array(V, chunks=(13, 7, 5)), axes=((1, 2), (1, 0))),
        np.tensordot(T, V, axes=((1, 2), (1, 0))),
    ),
    "batches": (lambda: da.matmul(U, U.transpose((0, 2, 1))), T @ T.transpose((0, 2, 1))),
    "rechunk": (lambda: U.rechunk((3, 35, 26)), T),
    "transposed": (lambda: X.T.rechunk((26, 77)).rechunk((13, 77)), A.T),
    "overlap": (
        lambda: da.overlap.overlap(da.from_array(A, chunks=(7, 52)), {0: 2, 1: 0}, {0: "none"}),
        None,
    ),
}


@pytest.mark.parametrize("form", OTHERS)
def test_other_collectives(form: str, programs: list[Any]) -> None:
    make, wanted = OTHERS[form]
    z = make()
    wanted = z.compute(scheduler="sync") if wanted is None else wanted
    room = int(share_of(z, 3) * 0.95)
    with dgpu.enable(local_ranks=3, memory_limit=room, regions=False, **ALWAYS):
        check_parts(z, wanted, room, programs)


def test_work_around_a_collective_is_split_off_first(programs: list[Any]) -> None:
    z = (X + 1) @ Y - 2
    room = int(share_of(X @ Y, 2) * 0.99)
    with dgpu.enable(local_ranks=2, memory_limit=room, **ALWAYS):
        ((region, prediction),) = dgpu.explain(z).regions
        close(z.compute(scheduler="sync"), (A + 1) @ B - 2)
    assert len(region.members) == 1
    assert len(programs) == prediction.parts > 1
