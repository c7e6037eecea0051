"""Regions of Dask's own layers only: whether a gang may compute one."""

from __future__ import annotations

from typing import Any

from dask_dgpu.environment.facts import ClusterFacts
from dask_dgpu.planner.plain import plain_region
from dask_dgpu.planner.predict import begins_at_once
from dask_dgpu.planner.stages import Places
from graph_opt.dask_graph.members import is_map
from graph_opt.dask_graph.parse import ArrayGraph
from graph_opt.model.cost import gang_seconds
from graph_opt.model.layout import CUPY, NUMPY
from graph_opt.model.piece import Region


def may_meet(arrays: ArrayGraph, facts: ClusterFacts) -> bool:
    """Whether blocks of a graph may have to meet.

    Blocks with the same index may be on different workers, unless they depend on one array.
    """
    sources = sum(not read for read in arrays.dependencies.values())
    if sources > 1 and facts.workers > 1:
        return True
    return not all(
        is_map(layer)
        for name, layer in arrays.layers.items()
        if arrays.dependencies[name] and arrays.node(name) is not None
    )


def is_possible(region: Region, facts: ClusterFacts, places: Places) -> bool:
    """Whether a gang can compute a region with a purpose: to bring blocks together.

    Gangs of CPUs transfer NumPy blocks and gangs of GPUs CuPy blocks. Annotated layers stay with
    Dask: users ask for workers, resources or retries of single tasks.
    """
    nodes = [*region.nodes.values(), *(node for node, _ in region.inputs)]
    other = NUMPY if facts.device == "cuda" else CUPY
    if region.annotations or (facts.workers and any(node.container == other for node in nodes)):
        return False
    return not region.in_place or _meets(region, places)


def may_pay(
    region: Region, arrays: ArrayGraph, facts: ClusterFacts, places: Places, share: float
) -> bool:
    """Whether a gang may take less than this share of plain Dask's time, before it is planned.

    In one process blocks do not move, so Dask's threads are as quick. Functions of users take
    unknown time, and Dask gives them to workers that are free.
    """
    if not facts.workers or any(work.once for work in region.works):
        return False
    plain = plain_region(region, arrays, max(facts.workers, facts.cores), facts, places)
    at_once = begins_at_once(region, places)
    gang = gang_seconds(facts.machine, region.tasks, region.steps, at_once=at_once)
    return gang < share * plain.seconds


def _meets(region: Region, places: Places) -> bool:
    """Whether blocks with the same index are known to be on several workers."""
    found: dict[Any, int] = {}
    return any(
        found.setdefault(index, places[key]) != places[key]
        for node, blocks in region.inputs
        for index in blocks
        if (key := (node.name, *index)) in places
    )
