"""Clusters that are not there: what dask_dgpu says that it would do on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import dask
import dask.array as da
import numpy as np

import dask_dgpu as dgpu
from dask_dgpu.environment.facts import ClusterFacts
from dask_dgpu.environment.settings import read
from dask_dgpu.observe.explain import Explanation
from dask_dgpu.optimizer import GraphOptimizer
from dask_dgpu.planner.present import Present
from graph_opt.model.layout import CUPY

Places = Mapping[Any, int]
FACTS = frozenset(ClusterFacts.__dataclass_fields__)


def facts_of(
    workers: int = 4, device: Any = "cpu", device_memory: int | None = None, **facts: Any
) -> ClusterFacts:
    """Return what is known about a cluster."""
    figures = tuple(facts.pop("figures", {}).items())
    return ClusterFacts(workers, device, device_memory, figures=figures, **facts)


@contextmanager
def described(**values: Any) -> Iterator[None]:
    """Enable dask_dgpu as on a cluster; ``values`` are facts about it, and settings."""
    facts = {name: values.pop(name) for name in FACTS & values.keys()}
    optimizer = GraphOptimizer(read({"on_error": "raise"} | values), facts_of(**facts))
    with dask.config.set(array_optimize=optimizer):
        yield


def explained(
    *arrays: da.Array, places: Places | None = None, others: int = 0, **values: Any
) -> Explanation:
    """Explain arrays on a cluster.

    ``places`` are the workers of the blocks that exist, and ``others`` the bytes of other results
    on each worker.
    """
    there = {} if places is None else places
    present = Present(lambda keys: others, lambda keys: {k: there[k] for k in keys if k in there})
    with (
        described(**values),
        mock.patch("dask_dgpu.observe.explain.present_on", return_value=present),
    ):
        return dgpu.explain(*arrays)


def placed(*places: tuple[da.Array, Callable[[Any], int]]) -> Places:
    """Return the worker of each block of some arrays, by its index."""
    return {
        (x.name, *index): place(index) for x, place in places for index in np.ndindex(x.numblocks)
    }


def on_gpus(x: da.Array, which: Callable[[str], bool] = lambda name: True) -> da.Array:
    """Pretend that blocks of some layers are on GPUs, by default all."""
    for name, layer in x.dask.layers.items():
        if layer.collection_annotations and which(name):
            layer.collection_annotations["chunk_type"] = CUPY
    return x
