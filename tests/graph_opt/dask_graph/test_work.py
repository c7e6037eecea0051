"""The work of tasks: what a function costs depends on the device, and other functions."""

from __future__ import annotations

from dataclasses import replace

import dask.array as da
import pytest
from dask.core import flatten

from graph_opt.dask_graph.parse import parse
from graph_opt.dask_graph.work import USUAL, task_seconds
from graph_opt.model.cost import CUDA
from graph_opt.model.layout import CUPY

X = da.ones((64, 32), chunks=(16, 32))
BLOCK = X.nbytes / 4
ROW = 32 * 8


def first_seconds(z: da.Array, *, on_gpu: bool, fused: bool = False) -> float:
    """Return the seconds of a task of the first layer that reads ``X``."""
    if on_gpu:
        for layer in z.dask.layers.values():
            layer.collection_annotations["chunk_type"] = CUPY
    graph = replace(parse(z.dask, set(flatten(z.__dask_keys__()))), fused=fused)
    (name,) = (each for each, needed in z.dask.dependencies.items() if needed == {X.name})
    return task_seconds(graph, name, {X.name}, CUDA)


def copies(seconds: float, nbytes: float) -> float:
    """Return how many times as long a copy of these bytes takes."""
    return seconds * CUDA.memory_bandwidth / nbytes


def test_arithmetic_costs_nothing_beside_the_memory_of_gpus() -> None:
    assert copies(first_seconds(X**3, on_gpu=True), 2 * BLOCK) == pytest.approx(USUAL.passes)
    assert copies(first_seconds(X**3, on_gpu=False), 2 * BLOCK) > 10 * USUAL.passes


def test_a_reduction_is_a_kernel_of_its_own_on_gpus() -> None:
    fused = first_seconds(X.var(axis=0), on_gpu=True, fused=True)
    assert copies(fused, BLOCK) == pytest.approx(1, rel=0.1)  # X is read once
    assert fused < first_seconds(X.var(axis=0), on_gpu=True) / 10
    on_host = first_seconds(X.var(axis=0), on_gpu=False, fused=True)
    assert on_host == first_seconds(X.var(axis=0), on_gpu=False)
