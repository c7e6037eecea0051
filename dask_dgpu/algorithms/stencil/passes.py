"""The passes over a rank's tiles between two exchanges of ghost cells.

::

    during the exchange   | early: the inner part of each tile
    after it              | late: the part around it | rest: sweep ..., sweep s

A pass is one sweep, or several that the device computes at once. The region of each sweep is
smaller than the one before by the stencil's radius, down to the tile itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from dask_dgpu.algorithms.stencil.plan import Tile, around, widened
from dask_dgpu.kernels.stencil import Region
from graph_opt.model.layout import Index

Regions = list[Region]
"""The region of each sweep of a pass."""


class Passes(NamedTuple):
    """The passes of a rank, the same after every exchange.

    ``early`` are regions of each tile that need no ghost cells from other tiles, ``late`` the
    regions around them, and ``rest`` the passes after the first, or all passes without an exchange.
    """

    early: dict[Index, Regions]
    late: dict[Index, list[Regions]]
    rest: list[dict[Index, Regions]]


def passes_of(
    tiles: Mapping[Index, Tile],
    radius: tuple[int, ...],
    sweeps: int,
    *,
    first: int,
    others: int,
) -> Passes:
    """Return the passes of a number of sweeps over a rank's tiles.

    ``first`` is the number of sweeps in the pass that hides the exchange, 0 without an exchange;
    ``others`` the maximum for each later pass.
    """

    def grown(tile: Tile, left: int) -> Region:
        return tile.region(_reach(radius, left))

    def early(tile: Tile) -> Regions:
        return [
            tile.early(_reach(radius, at + 1), _reach(radius, sweeps - 1 - at))
            for at in range(first)
        ]

    def late(tile: Tile) -> Iterator[Regions]:
        whole = [grown(tile, sweeps - 1 - at) for at in range(first)]
        inner = tile.early(_reach(radius, first), _reach(radius, sweeps - first))
        for part in around(whole[-1], inner):
            yield [
                widened(part, _reach(radius, first - 1 - at), each) for at, each in enumerate(whole)
            ]

    done, rest = first, []
    while done < sweeps:
        several = range(done, min(done + others, sweeps))
        rest.append(
            {i: [grown(tile, sweeps - 1 - at) for at in several] for i, tile in tiles.items()}
        )
        done = several.stop
    if not first:
        return Passes({}, {}, rest)
    return Passes(
        {index: early(tile) for index, tile in tiles.items()},
        {index: list(late(tile)) for index, tile in tiles.items()},
        rest,
    )


def _reach(radius: tuple[int, ...], sweeps: int) -> tuple[int, ...]:
    """Return the reach of a number of sweeps, along each axis."""
    return tuple(sweeps * reach for reach in radius)
