"""Parts of a collective: each wanted block is in one of them, and they get smaller."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from graph_opt.model.layout import Index
from graph_opt.model.parts import finer, in_turn, largest, load
from graph_opt.model.piece import Region
from tests.graph_opt.graphs import array, regions


def product(rows: int, inner: int, columns: int) -> Region:
    x, y = array(rows, inner, chunks=2), array(inner, columns, chunks=2, seed=1)
    (region,) = regions(x @ y)
    return region


@pytest.mark.parametrize("shape", [(14, 4, 10), (22, 6, 1), (1, 6, 26), (7, 5, 9)])
def test_parts_have_all_blocks_once_and_shrink(shape: tuple[int, int, int]) -> None:
    region = product(*shape)
    ((name, wanted),), inner = region.wanted, len(range(0, shape[1], 2))
    loads = [load(region)]
    for parts in finer(region):
        made: defaultdict[Index, list[int]] = defaultdict(list)
        for part in parts:
            (piece,), ((own, blocks),) = part.pieces, part.wanted
            assert part.term_of == (None if own == name else name)
            assert set(piece.computed) == set(blocks)
            for index in blocks:
                made[index] += piece.multiplied
        # each block has all its products once
        assert sorted(made) == sorted(wanted)
        assert {tuple(products) for products in made.values()} == {tuple(range(inner))}
        loads.append(load(largest(parts)))
    assert len(parts) == len(wanted) * inner
    assert loads == sorted(loads, reverse=True)
    assert loads[-1] < loads[0]


def test_one_block_has_no_parts() -> None:
    assert list(finer(product(2, 2, 2))) == []


def test_one_result_has_terms() -> None:
    _, terms, *_ = finer(product(2, 9, 2))
    assert [part.pieces[0].summed for part in terms] == [(0, 2), (0, 2, 4), (0, 2, 3)]


@pytest.mark.parametrize("inner", [(9, 0), (0, 9), (0, 9, 0), (4, 0, 5), (1, 8, 0)])
def test_empty_blocks_are_no_terms(inner: tuple[int, ...]) -> None:
    x = array(4, 9, chunks=(2, inner))
    (region,) = regions(x @ x.T)
    for parts in finer(region):
        terms = Counter(index for part in parts if part.term_of for index in part.wanted[0][1])
        assert 1 not in terms.values()


def test_square_products_have_tiles() -> None:
    """Both operands get smaller."""
    _, second, *_ = finer(product(16, 16, 16))
    assert len(second) == 4
    assert {len(dict(part.wanted).popitem()[1]) for part in second} == {16}


def test_each_part_knows_the_one_before() -> None:
    parts = list(in_turn(next(finer(product(14, 4, 10)))))
    assert parts[0].after is None
    for before, part in pairwise(parts):
        ((name, blocks),) = before.wanted
        assert part.after == (before.token, (name, blocks[-1]))
    assert len({part.token for part in parts}) == len(parts)
