"""Results without axes on a cluster: scalars on CPUs, arrays on GPUs, as plain Dask returns."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

VECTOR = np.random.default_rng(0).integers(-4, 5, 24).astype("float64")

FUNCTIONS = {
    "dot": lambda x: x.dot(x),
    "einsum": lambda x: da.einsum("i,i->", x, x),
    "tensordot": lambda x: da.tensordot(x.reshape(4, 6), x.reshape(4, 6), axes=2),
    "complex": lambda x: da.vdot(x + 1j, x - 1j),
    "then a function": lambda x: da.sqrt(x.dot(x)) + 1,
    "sum": lambda x: dgpu.sum(x, method="compensated"),
}


@pytest.mark.parametrize("case", FUNCTIONS)
def test_type_is_that_of_plain_dask(client, on_device, in_memory, case):
    function = FUNCTIONS[case]
    with dask.config.set(array_optimize=None):
        plain = dask.compute(function(on_device(VECTOR, 5)), optimize_graph=False)[0]
    for make in (on_device, in_memory):  # from tasks, and launched by the scheduler
        x = make(VECTOR, 5)
        for value in (function(x).compute(), function(x).persist().compute()):
            assert type(value) is type(plain)
            assert value.ndim == 0
            assert abs(value - plain) < 1e-9


def test_blocks_from_other_ranks_are_scalars(client, in_memory, device):
    x = in_memory(VECTOR, 5)
    total = x.dot(x) + in_memory(VECTOR[::-1].copy(), 7).dot(x)
    kind = total.map_blocks(lambda block: np.str_(type(block).__name__), dtype="U9")
    assert kind.compute() == {"cpu": "float64", "cuda": "ndarray"}[device]


def test_blocks_of_numpy_give_scalars_on_any_device(client):
    x = da.from_array(VECTOR, chunks=5)
    energy = x.dot(x)
    for value in (energy.compute(), (energy + 1).compute() - 1, energy.persist().compute()):
        assert type(value) is np.float64
        assert value == VECTOR @ VECTOR
