"""Distribution of the units of all ranks to rounds.

Every unit has a *phase* between 0 and 1, and rounds are intervals of it. The units of rank p
for rank q, in their order, are spread over all phases, and those for its neighbour come a
little before those for the next rank::

    phase      0                                                      1
    rank 0     to 1, to 2, to 3,   to 1, to 2, to 3,   to 1, to 2, to 3
    rank 1     to 2, to 3, to 0,   to 2, to 3, to 0,   to 2, to 3, to 0
    rank 2     to 3, to 0, to 1,   to 3, to 0, to 1,   to 3, to 0, to 1

So in any interval every rank sends and receives its even share, for any number of units of a
pair of ranks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.algorithms.redistribute.cells import Ints

Floats = np.ndarray[Any, np.dtype[np.float64]]


class Dealt(NamedTuple):
    """The round of each unit, the number of rounds, and the most bytes of a rank in one."""

    round: Ints
    rounds: int
    busiest: int


def deal(owner: Ints, sent: Ints, limit: int, *, transformed: bool) -> Dealt:
    """Distribute units to rounds; a round above the limit has one unit.

    Parameters
    ----------
    owner : array of int
        The rank of each of U units.
    sent : array of int
        (U, P): bytes of each unit for each of P ranks.
    limit : int
        Bytes of a rank's buffers, in and out. Two rounds overlap, unless there is one.
    transformed : bool
        Whether the bytes of a unit count too, in addition to its messages.
    """
    units = np.arange(len(owner))
    away = sent.copy()
    away[units, owner] = 0
    load = away.copy()
    load[units, owner] = (away + sent if transformed else away).sum(axis=1)
    phase = _phases(owner, away, sent.sum(axis=1))
    order = np.argsort(phase, kind="stable")
    total = np.zeros((len(owner) + 1, sent.shape[1]), np.int64)
    np.cumsum(load[order], axis=0, out=total[1:])
    edges = _edges(phase[order], total, limit)
    which = np.empty(len(owner), np.int64)
    which[order] = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    return Dealt(which, len(edges) - 1, _busiest(total, edges))


def _phases(owner: Ints, away: Ints, weight: Ints) -> Floats:
    """Return the phase of each unit."""
    size = away.shape[1]
    main = np.where(away.any(axis=1), away.argmax(axis=1), owner)
    # units for many ranks equally need no turn
    alike = 2 * away.max(axis=1, initial=0) <= away.sum(axis=1)
    turn = np.where(alike, 0, (main - owner) % size) / size
    pair = owner * size + main
    order = np.argsort(pair, kind="stable")
    of_pair = np.bincount(pair, weight, size * size)
    first = np.concatenate([[0.0], np.cumsum(of_pair)[:-1]])
    before = np.empty(len(owner))
    before[order] = np.cumsum(weight[order]) - weight[order]
    phases: Floats = (before - first[pair] + turn * weight) / of_pair[pair]
    return phases


def _edges(phase: Floats, total: Ints, limit: int) -> Ints:
    """Cut units, in the order of their phases, into rounds.

    ``total[k]`` are the bytes of each rank in the first k units.
    """
    if not len(phase):
        return np.zeros(1, np.int64)
    whole = int(total[-1].max())
    if whole <= limit:
        return np.array([0, len(phase)])
    capacity = max(1, limit // 2)
    least = -(-whole // capacity)
    count = least
    while count <= least + least // 4 + 2:
        edges = np.searchsorted(phase, np.arange(count + 1) / count)
        if _busiest(total, edges) <= capacity:
            return edges[np.diff(edges, prepend=-1) > 0]
        count += max(1, count // 32)
    return _greedy(total, capacity)


def _greedy(total: Ints, capacity: int) -> Ints:
    """Close a round before the unit that would exceed the capacity of a rank."""
    last = len(total) - 1
    columns = [np.ascontiguousarray(column) for column in total.T]
    edges = [0]
    while edges[-1] < last:
        at = edges[-1]
        fits = [
            int(np.searchsorted(column, column[at] + capacity, side="right")) - 1
            for column in columns
        ]
        edges.append(max(at + 1, min(fits)))
    return np.array(edges)


def _busiest(total: Ints, edges: Ints) -> int:
    """Return the most bytes of a rank in a round."""
    return int(np.diff(total[edges], axis=0).max(initial=0))
