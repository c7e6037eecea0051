"""``dgpu.einsum`` of three operands on a cluster: one program, its tasks, a worker lost."""

from __future__ import annotations

from functools import partial

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from tests.cluster.losses import Losses
from tests.cluster.observe import (
    computed,
    counted,
    host,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

RNG = np.random.default_rng(5)
CHAIN, SHAPES = "ij,jk,kl->il", ((36, 44), (44, 28), (28, 40))
ARRAYS = [RNG.integers(-9, 9, shape).astype("float64") for shape in SHAPES]
WANTED = np.linalg.multi_dot(ARRAYS)
BATCH = [RNG.integers(-9, 9, (6, n, m)).astype("float32") for n, m in ((20, 8), (24, 8), (24, 5))]


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, "8 kB"], ids=["whole", "sliced"])
def test_a_chain_is_one_gang(client, on_device, limit):
    operands = [on_device(a, (9, 11)) for a in ARRAYS]
    order = [(0, 1), (0, 1)]
    assert bool(dgpu.einsum_path(CHAIN, *operands, optimize=order, memory_limit=limit).slices) == (
        limit is not None
    )
    y = dgpu.einsum(CHAIN, *operands, optimize=order, memory_limit=limit)
    value, gangs = computed(client, y)
    np.testing.assert_array_equal(value, WANTED)
    assert gangs == 1


def test_attention_is_one_gang(client, on_device):
    operands = [on_device(a, (2, 8, 4)) for a in BATCH]
    text = "bqd,bkd,bkv->bqv"
    value, gangs = computed(client, da.einsum(text, *operands))
    np.testing.assert_array_equal(value, np.einsum(text, *BATCH))
    assert gangs == 1


def test_tasks(client, on_device):
    """Blocks in and out, and two for each rank: the intermediate has none."""
    operands = [on_device(a, (9, 11)) for a in ARRAYS]
    y, tasks, blocks, ranks = counted(client, partial(dgpu.einsum, CHAIN), *operands)
    assert tasks <= blocks + 2 * ranks + 2
    np.testing.assert_array_equal(host(y.compute()), WANTED)


class TestLosses(Losses):
    """A worker is lost between the products."""

    @pytest.mark.slow
    def test_killed_in_the_program(self, client, cluster, on_device):
        operands = [on_device(a, (9, 11)) for a in ARRAYS]
        self.slow(client, 1.0)
        future = client.compute(dgpu.einsum(CHAIN, *operands))
        np.testing.assert_array_equal(self.result_after_loss(client, future), WANTED)
