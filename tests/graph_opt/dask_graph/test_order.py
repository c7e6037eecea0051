"""The order of layers: by what they read and by name, by nothing else."""

from __future__ import annotations

import pickle

import dask.array as da
from hypothesis import given
from hypothesis import strategies as st

from graph_opt.passes import depth_first
from tests.graph_opt.graphs import array, regions

A = array(12, 12)


def test_what_is_read_is_made_right_before_it_is() -> None:
    reads: dict[str, set[str]] = {
        "sum": {"left", "right"},
        "right": {"late"},
        "late": set(),
        "left": {"early"},
        "early": set(),
    }
    assert depth_first(reads) == ["early", "left", "late", "right", "sum"]


def test_nothing_and_long_chains() -> None:
    assert depth_first({}) == []
    chain = {str(n): {str(n - 1)} if n else set() for n in range(5000)}
    assert depth_first(chain) == [str(n) for n in range(5000)]


@given(st.data())
def test_only_names_decide(data: st.DataObject) -> None:
    names = [f"layer-{n}" for n in range(data.draw(st.integers(1, 12)))]
    reads = {
        name: set(data.draw(st.lists(st.sampled_from(names[:n])))) if n else set()
        for n, name in enumerate(names)
    }
    order = depth_first(reads)
    assert sorted(order) == sorted(names)
    assert all(order.index(other) < order.index(name) for name in names for other in reads[name])
    shuffled = {
        name: set(data.draw(st.permutations(sorted(reads[name]))))
        for name in data.draw(st.permutations(names))
    }
    assert depth_first(shuffled) == order


def test_a_graph_has_the_same_gang_wherever_it_is_optimized() -> None:
    for seed in range(20):  # sets of other names come in other orders once they have travelled
        products = [array(12, 12, seed=4 * seed + n) @ A for n in range(4)]
        z = da.add(products[0] * products[1], products[2] * products[3]) @ A
        moved = da.Array(pickle.loads(pickle.dumps(z.dask)), z.name, z.chunks, meta=z)
        (here,), (there,) = regions(z, local=True), regions(moved, local=True)
        assert here.token == there.token
