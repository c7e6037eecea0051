"""What the passes over a rank's tiles make between two exchanges of ghost cells.

::

    while ghost cells travel   | early: the inner part of each tile
    when they are there        | late: what is around it | rest: sweep ..., sweep s

A pass makes one sweep, or several that the device makes at once. Each sweep makes a region
that is smaller than the one before by the stencil's radius, down to the tile itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from dask_dgpu.algorithms.stencil.plan import Tile, around, widened
from dask_dgpu.kernels.stencil import Region
from graph_opt.model.layout import Index

Regions = list[Region]
"""What each sweep of a pass makes."""


class Passes(NamedTuple):
    """The passes of a rank; the same ones follow every exchange.

    Parameters
    ----------
    early : dict of tuple of int to list of Region
        What is made of each tile without ghost cells of others.
    late : dict of tuple of int to list of list of Region
        Of each tile the parts around that; some may be empty.
    rest : list of dict of tuple of int to list of Region
        The passes after the first, or all of them if nothing travels.
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
    """Return the passes that make so many sweeps.

    Parameters
    ----------
    tiles : mapping of tuple of int to Tile
        The rank's.
    radius : tuple of int
        How far the stencil reaches along each axis.
    sweeps : int
        Sweeps in all.
    first : int
        Sweeps of the pass that hides the exchange; 0 if nothing travels.
    others : int
        Sweeps of each pass after that, at most.
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
    """Return how far so many sweeps reach: ghost cells that are made when they are left."""
    return tuple(sweeps * reach for reach in radius)
