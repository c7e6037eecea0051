"""An order of layers in which each comes after all that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet


def depth_first(dependencies: Mapping[str, AbstractSet[str]]) -> list[str]:
    """Order layers, each right before the first that reads it.

    What is made late takes memory for less long. Only names decide, not the order in which
    mappings and sets happen to be gone through: the same graph is the same program in every
    process, and its gang has the same name.

    Parameters
    ----------
    dependencies : mapping of str to set of str
        What each layer reads; of all layers, without cycles.
    """
    read = set().union(*dependencies.values())
    stack = sorted(dependencies.keys() - read, reverse=True)
    order: dict[str, None] = {}
    while stack:
        missing = dependencies[stack[-1]] - order.keys()
        if missing and stack[-1] not in order:
            stack += sorted(missing, reverse=True)
        else:
            order.setdefault(stack.pop())
    return list(order)
