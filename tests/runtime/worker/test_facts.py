"""Facts about blocks live as long as these."""

from __future__ import annotations

import numpy as np

from dask_dgpu.runtime.worker.member import BlockFacts


def test_facts_belong_to_one_object():
    known = BlockFacts()
    block, equal = np.zeros(3), np.zeros(3)
    known.of(block)["zeros"] = 3
    assert known.of(block) == {"zeros": 3}
    assert known.of(equal) == {}
    assert known.of(block[:]) == {}


def test_facts_end_with_their_block():
    known = BlockFacts()
    for each in range(100):
        block = np.zeros(3)
        assert known.of(block) == {}
        known.of(block)["number"] = each
        assert len(known) == 1
        del block
    assert len(known) == 0


def test_facts_of_other_objects_are_not_kept():
    known = BlockFacts()
    known.of(np.float64(1))["zeros"] = 0
    assert len(known) == 0
