"""Regions that read the same arrays, and do not depend on each other: one gang can run them.

::

    x.sum()  (x * y).sum()          both read x: one launch, one answer
    z = x @ y;  z.persist() + x     the second reads the first, through other layers: two
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from dask.highlevelgraph import HighLevelGraph

from graph_opt.model.piece import Region


def together(regions: Sequence[Region], graph: HighLevelGraph) -> list[list[Region]]:
    """Group regions with common inputs and equal annotations that do not depend on each other.

    Regions with functions of users stay alone: these take unknown time, and may fail.
    """
    found: list[list[Region]] = []
    for at, region in enumerate(regions):
        others = [*found, *([each] for each in regions[at + 1 :])]
        for group in found:
            if _share(group, region) and not _depend([*group, region], others, graph):
                group.append(region)
                break
        else:
            found.append([region])
    return found


def joined(regions: Sequence[Region]) -> Region:
    """Return one region of several that do not depend on each other."""
    members = tuple(chain.from_iterable(region.members for region in regions))
    wanted = tuple(chain.from_iterable(region.wanted for region in regions))
    return Region(members, wanted, regions[0].annotations)


def _share(group: Sequence[Region], region: Region) -> bool:
    """Whether a region may join a group, and reads an array that the group reads."""
    first, read = group[0], {node.name for node, _ in region.inputs}
    if any(work.once for each in (first, region) for work in each.works):
        return False
    if (first.annotations or {}) != (region.annotations or {}):
        return False
    return any(node.name in read for each in group for node, _ in each.inputs)


def _depend(
    some: Sequence[Region], groups: Iterable[Sequence[Region]], graph: HighLevelGraph
) -> bool:
    """Whether a path leads from one of these regions to another, if each group is one node."""
    inside = set(chain.from_iterable(region.nodes for region in some))
    waiting: set[str] = set()
    for region in some:
        needed = set(chain.from_iterable(graph.dependencies[name] for name in region.nodes))
        waiting |= needed - region.nodes.keys()
    homes: dict[str, set[str]] = {}
    for group in groups:
        names = set(chain.from_iterable(region.nodes for region in group))
        homes.update(dict.fromkeys(names, names))
    known: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in inside:
            return True
        names = homes.get(name, {name})
        known |= names
        waiting |= set(chain.from_iterable(graph.dependencies[each] for each in names)) - known
    return False
