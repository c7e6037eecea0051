"""Which rank takes which block, so that much is in place and the load is even."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graph_opt.model.layout import Lengths


def settled(held: Lengths, sizes: Sequence[int], even: Sequence[int]) -> Sequence[int]:
    """Let each block take the rank with most of it that still has room, else that of ``even``.

    ``held`` has what each rank has of each block, (blocks, ranks). No rank has more than the
    fullest of ``even``, or little more if block sizes differ much. Blocks choose in the order of
    their largest part on one rank.
    """
    if (held == held[:, :1]).all():
        return even
    load = np.zeros(held.shape[1], np.int64)
    owners = list(even)
    np.add.at(load, owners, sizes)
    room = int(load.max(initial=0))
    load[:] = 0
    for block in np.argsort(-held.max(axis=1, initial=0), kind="stable").tolist():
        fits = load + sizes[block] <= room
        if not fits.any():
            fits = load == load.min()
        mine = np.where(fits, held[block], -1)
        best = int(mine.argmax())
        owners[block] = even[block] if mine[even[block]] == mine[best] else best
        load[owners[block]] += sizes[block]
    return owners
