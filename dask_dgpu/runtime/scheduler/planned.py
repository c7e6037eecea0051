"""Planned programs, kept by their form: a known program on the same places is not planned again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dask_dgpu.runtime.again import Tried, with_less
from dask_dgpu.runtime.package import Package
from dask_dgpu.runtime.plans import Owners, plans
from dask_dgpu.runtime.program import Key, Launch
from graph_opt.model.cost import Hosts

KEPT_PROGRAMS = 32
"""Number of planned programs that the scheduler keeps."""


@dataclass(frozen=True)
class Planned:
    """A program as its members get it, for ranks that have its inputs in certain places.

    ``collectives`` are their plans by the numbers of their results; ``ranks`` has for each result
    the rank of each of its blocks, and ``tokens`` are those in the text, joined. A program that is
    ``tried`` again was planned with less memory.
    """

    package: Package
    collectives: Mapping[int, Any]
    ranks: tuple[tuple[int, ...], ...]
    tokens: bytes
    tried: Tried | None = None

    @classmethod
    def of(
        cls, launch: Launch, hosts: Hosts, owners: Owners, size: int, *, less: bool = False
    ) -> Planned:
        """Plan a program, with ``less`` memory for its second run; may take seconds."""
        program, tried = launch.program.on_hosts(hosts), None
        if less:
            found, tried = with_less(program, launch.title, owners, size)
        else:
            found = plans(program, owners, size)
        ranks = tuple(
            tuple(map(found.values[number].layout.owner, blocks))
            for number, blocks in program.outputs
        )
        package = Package.of(program, found.payload)
        return cls(package, found.collectives, ranks, b"".join(program.text[1]), tried)

    def placed(self, launch: Launch) -> dict[Key, int]:
        """Return the rank of each block of the results, by their names."""
        return {
            (name, *index): rank
            for (name, blocks), ranks in zip(launch.outputs, self.ranks, strict=True)
            for index, rank in zip(blocks, ranks, strict=True)
        }
