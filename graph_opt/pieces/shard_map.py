"""The piece of a function that runs once on each rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graph_opt.model.cost import Machine, dask_rechunk_seconds
from graph_opt.model.layout import ArrayNode
from graph_opt.model.piece import Piece


@dataclass(frozen=True)
class ShardMapPiece(Piece):
    """A function of shards of ``sources``; the task has its ``name`` and the axes of shards."""

    sources: tuple[ArrayNode, ...]
    call: Any

    operation = "shard_map"

    @property
    def task(self) -> Any:
        return self.call

    @property
    def inputs(self) -> tuple[ArrayNode, ...]:
        return self.sources

    @property
    def summary(self) -> str:
        arrays = ", ".join(f"{source.shape} {source.dtype}" for source in self.sources)
        return f"{self.call.name} of {arrays}"

    @property
    def facts(self) -> dict[str, Any]:
        return {**super().facts, "function": self.call.name, "axes": self.call.axes}

    def dask_cost(self, ranks: int, machine: Machine) -> tuple[int, float]:
        """Return tasks and seconds of plain Dask without the function: one task has all blocks."""
        nbytes = sum(node.nbytes for node in (*self.sources, self.output))
        tasks = sum(node.blocks for node in (*self.sources, self.output)) + 1
        return tasks, dask_rechunk_seconds(tasks, nbytes, nbytes, ranks, machine)
