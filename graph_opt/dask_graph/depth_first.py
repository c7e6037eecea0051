"""Order layers by their dependencies."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet


def depth_first(dependencies: Mapping[str, AbstractSet[str]]) -> list[str]:
    """Order layers, each after all that it reads and right before its first reader.

    Late results occupy memory for a shorter time. The order depends only on names, not on the
    iteration of mappings and sets, so every process derives the same program and gang name.
    ``dependencies`` are the layers that each layer reads, without cycles.
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
