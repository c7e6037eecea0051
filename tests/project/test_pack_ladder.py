"""Pieces of the ladder of benchmarks of packing."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import numpy as np
import pytest

from dask_dgpu.kernels.pack import copy_host
from tests.project.test_benchmarks import BENCHMARKS


@pytest.fixture
def pack_harness(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("pack_harness")


def test_pieces_of_the_ladder_are_all_elements_once(pack_harness: ModuleType) -> None:
    shape = (3, 5)
    message = np.arange(2 * 256 * 15, dtype="float32")
    blocks = [np.zeros((16 * 3, 16 * 5), "float32") for _ in range(2)]
    unpack, pack = pack_harness.pieces_of(message, blocks, shape)
    copy_host(unpack)
    assert pack_harness.differing(message, blocks, shape) == 0
    np.testing.assert_array_equal(blocks[1][3:6, 10:15].ravel(), message[(256 + 18) * 15 :][:15])
    before = message.copy()
    message[...] = -1
    assert pack_harness.differing(message, blocks, shape) == message.size
    copy_host(pack)
    np.testing.assert_array_equal(message, before)
    assert pack_harness.shape_of(512) == (128, 1024)
