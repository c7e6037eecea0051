"""Planned programs, kept by their form: a known program on the same places is not planned again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dask_dgpu.runtime.again import Tried, with_less
from dask_dgpu.runtime.package import Package
from dask_dgpu.runtime.plans import Owners, plans
from dask_dgpu.runtime.program import Key, Program
from graph_opt.model.hosts import Hosts

KEPT_PROGRAMS = 32
"""Number of planned programs that the scheduler keeps."""


@dataclass(frozen=True)
class Planned:
    """A program as its members get it, for ranks that have its inputs in certain places.

    ``collectives`` are their plans by the numbers of their outputs; ``ranks`` has for each result
    the rank of each of its blocks. A program that is ``tried`` again was planned with less memory.
    """

    package: Package
    collectives: Mapping[int, Any]
    ranks: tuple[tuple[int, ...], ...]
    tried: Tried | None = None

    @classmethod
    def of(
        cls, program: Program, hosts: Hosts, owners: Owners, size: int, *, less: bool = False
    ) -> tuple[Planned, bytes]:
        """Plan a program, with ``less`` memory for its second run; may take seconds.

        Returns it with the joined tokens of its names.
        """
        there, tried = program.on_hosts(hosts), None
        if less:
            found, tried = with_less(there, owners, size)
        else:
            found = plans(there, owners, size)
        package, tokens = Package.of(found.program.payload, found.fixed.payload)
        placed = found.placed()
        ranks = tuple(
            tuple(placed[name, *index] for index in blocks) for name, blocks in program.outputs
        )
        return cls(package, found.fixed.collectives, ranks, tried), b"".join(tokens)

    def placed(self, program: Program) -> dict[Key, int]:
        """Return the rank of each block of the results, under the names of a program."""
        return {
            (name, *index): rank
            for (name, blocks), ranks in zip(program.outputs, self.ranks, strict=True)
            for index, rank in zip(blocks, ranks, strict=True)
        }

    def plans(self, program: Program) -> dict[str, Any]:
        """Return the plans of collectives, by the names of their outputs."""
        names = program.names
        return {names[number]: plan for number, plan in self.collectives.items()}
