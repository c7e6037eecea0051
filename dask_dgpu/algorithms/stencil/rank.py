"""The rank program: tiles are exchanged, and swept back and forth between two buffers.

::

    transfer lane    | pack, send ........ unpack |                       | pack ...
    compute lane     | rims, inner part | waits   | outer part, more sweeps ..., s | ...

An exchange of ghost cells s times as deep as the stencil's radius lasts for s sweeps
(:mod:`~dask_dgpu.algorithms.stencil.plan`). The inner part is the result of the first sweep
that needs no ghost cells; of the first few sweeps if one pass of the device computes several.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from dask_dgpu.algorithms import Array, Blocks, Progress, no_progress
from dask_dgpu.algorithms.halo.plan import HaloPlan, plan_halo
from dask_dgpu.algorithms.halo.rank import Exchange
from dask_dgpu.algorithms.redistribute.plan import RedistributePlan
from dask_dgpu.algorithms.redistribute.rank import redistribute_rank
from dask_dgpu.algorithms.stencil.plan import Passes, Regions, SweepPlan, passes_of
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels import stencil
from dask_dgpu.kernels.device import Device
from graph_opt.model.layout import Index, Layout, once_per_rank

Storage = dict[Index, Array]


def stencil_rank(
    plan: SweepPlan,
    comm: Comm,
    device: Device,
    blocks: Blocks,
    *,
    progress: Progress = no_progress,
) -> dict[Index, Array]:
    """Apply a stencil repeatedly as one rank; ``progress`` counts sweeps.

    The inner parts of tiles are swept while messages are in transit; nothing waits for the
    host.
    """
    tiles = Tiles(plan, comm, device)
    tiles.load(blocks)
    done, iterations = 0, plan.task.iterations
    while done < iterations:
        sweeps = min(plan.steps, iterations - done)
        tiles.advance(sweeps)
        done += sweeps
        progress(done, iterations)
    return tiles.unload()


@dataclass
class _Buffer:
    """One of two storages of all tiles of a rank, and the exchanges that fill its ghost cells."""

    storage: Storage
    exchange: Exchange
    rims: list[Exchange]

    def fill_rims(self) -> None:
        """Fill the rims beyond the array; on the compute lane."""
        for rim in self.rims:
            rim.start()


class Tiles:
    """The tiles of one rank; all methods are collective."""

    def __init__(self, plan: SweepPlan, comm: Comm, device: Device) -> None:
        self.plan, self.comm, self.device = plan, comm, device
        self.tiles = plan.tiles_of(comm.rank)
        self.constant_rims = all(
            not isinstance(boundary, str) or boundary == "periodic"
            for boundary in plan.task.boundary
        )
        self.added: Storage | None = None
        self._known: dict[Any, Any] = {}  # recorded sweeps of the device
        self._planned: dict[int, Passes] = {}
        with device.computing():
            self.now, self.then = self._buffer(), self._buffer()
            self._first = self.now
            self.now.fill_rims()
            self.then.fill_rims()

    def load(self, blocks: Blocks) -> None:
        """Copy blocks into the tiles."""
        moved = self._moved(self.plan.into, blocks)
        with self.device.computing():
            self._fill(self.now, moved)
        self.device.join()  # before the moved blocks are freed

    def add(self, blocks: Blocks, factor: float) -> None:
        """Let each sweep add ``factor`` times the values of the blocks of ``plan.added``."""
        moved = self._moved(self.plan.added_into, blocks)
        with self.device.computing():
            buffer = self._buffer()
            self._fill(buffer, moved)
            for index in self.tiles:
                self._own(buffer, index)[...] *= factor
            self.added = buffer.storage
        if self.plan.steps > 1:  # else ghost cells are not swept
            self._start(buffer)
            self._finish(buffer)
        self.device.join()  # before the moved blocks are freed

    def unload(self) -> dict[Index, Array]:
        """Return the tiles as blocks."""
        plan, values = self.plan, {}
        with self.device.computing():
            for index in plan.tiles.owned(self.comm.rank):
                values[index] = self.device.empty(plan.tiles.block_shape(index), plan.task.dtype)
                if index in self.tiles:
                    values[index][...] = self._own(self.now, index)
        if plan.back is None:
            self.device.join()
            return values
        return redistribute_rank(plan.back, self.comm, self.device, values)

    def advance(self, sweeps: int, change: Array | None = None) -> None:
        """Exchange ghost cells and sweep up to ``plan.steps`` times.

        ``change`` is an optional array of one float64 on the device, to which the last sweep adds
        the sum of the squares of its changes.
        """
        start = self.now
        passes = self._passes(sweeps)
        self._start(start)
        if start.exchange.travels:
            measured = None if passes.rest else change
            with self.device.computing():
                self._rims_again(start)
                for index, regions in passes.early.items():
                    self._sweep(index, regions, measured)
        self._finish(start)
        with self.device.computing():
            if change is None and self.constant_rims:
                key, work = (start is self._first, sweeps), partial(self._rest, passes)
                turned = self.device.again(self._known, key, work)
            else:
                turned = self._rest(passes, change)
        if turned:
            self._swap()

    def measure(self, change: Array) -> None:
        """Add the sum of the squares of the changes of a sweep to ``change``."""
        self.advance(1, change)
        self._swap()

    def _rest(self, passes: Passes, change: Array | None = None) -> bool:
        """Sweep the parts that need ghost cells; return whether ``then`` has the result."""
        start, following = self.now, self.then
        try:
            self._rims_again(start)
            if start.exchange.travels:
                measured = None if passes.rest else change
                for index, parts in passes.late.items():
                    for regions in parts:
                        self._sweep(index, regions, measured)
                self._swap()
                if passes.rest:
                    self._rims_again(self.now)
            for left, made in zip(reversed(range(len(passes.rest))), passes.rest, strict=True):
                turned = False
                for index, regions in made.items():
                    turned = self._sweep(index, regions, None if left else change)
                if turned:
                    self._swap()
                if left:
                    self._rims_again(self.now)
            return self.now is not start
        finally:  # so that it can be repeated
            self.now, self.then = start, following

    def _passes(self, sweeps: int) -> Passes:
        """Return the passes after an exchange for a number of sweeps."""
        if sweeps not in self._planned:
            first, others = 0, sweeps if self.constant_rims else 1
            if self.now.exchange.travels:
                at_once = stencil.sweeps_at_once(self.device.kind, self.plan.task.taps)
                first = min(others, at_once)
            self._planned[sweeps] = passes_of(self.tiles, sweeps, first=first, others=others)
        return self._planned[sweeps]

    def _sweep(self, index: Index, regions: Regions, change: Array | None) -> bool:
        """Sweep one pass of a tile; return whether ``then`` has the result."""
        if any(along.start >= along.stop for along in regions[-1]):
            return False
        return stencil.sweeps(
            self.now.storage[index],
            self.then.storage[index],
            self.plan.task.taps,
            regions,
            None if self.added is None else self.added[index],
            change,
        )

    def _moved(self, move: RedistributePlan | None, blocks: Blocks) -> Blocks:
        return blocks if move is None else redistribute_rank(move, self.comm, self.device, blocks)

    def _swap(self) -> None:
        self.now, self.then = self.then, self.now

    def _start(self, buffer: _Buffer) -> None:
        with self.device.computing():
            ready = self.device.mark()
        with self.device.transferring():
            self.device.after(ready)
            buffer.exchange.start()

    def _finish(self, buffer: _Buffer) -> None:
        with self.device.transferring():
            buffer.exchange.finish()
            received = self.device.mark()
        with self.device.computing():
            self.device.after(received)

    def _rims_again(self, buffer: _Buffer) -> None:
        if not self.constant_rims:
            buffer.fill_rims()

    def _own(self, buffer: _Buffer, index: Index) -> Array:
        return buffer.storage[index][self.tiles[index].inside]

    def _fill(self, buffer: _Buffer, blocks: Blocks) -> None:
        for index in self.tiles:
            self._own(buffer, index)[...] = blocks[index]

    def _buffer(self) -> _Buffer:
        """Allocate storage for all tiles; unfilled ghost cells are zero."""
        plan, device, dtype = self.plan, self.device, self.plan.task.dtype
        storage = {i: device.zeros(tile.shape, dtype) for i, tile in self.tiles.items()}
        extended = {i: storage[i][tile.extended] for i, tile in self.tiles.items()}
        blocks = {
            index: extended[index][plan.halo.interior(index)]
            if index in self.tiles
            else device.empty(plan.tiles.block_shape(index), dtype)
            for index in plan.tiles.owned(self.comm.rank)
        }
        exchange = Exchange(plan.halo, self.comm, device, blocks, extended)
        place = (0,) * plan.tiles.ndim
        rims = [
            Exchange(halo, self.comm, device, {place: extended[i]}, {place: storage[i]})
            for i, halo in _rims(plan, self.comm.rank).items()
        ]
        return _Buffer(storage, exchange, rims)


@once_per_rank
def _rims(plan: SweepPlan, rank: int) -> dict[Index, HaloPlan]:
    """Plan how to fill the rims of a rank's tiles from these; tiles of one shape share a plan."""
    ends, dtype = plan.task.boundary, plan.task.dtype

    @cache
    def planned(lengths: Index, rims: tuple[tuple[int, int], ...]) -> HaloPlan:
        layout = Layout(tuple((0, length) for length in lengths), (rank,))
        needed = [end if any(rim) else None for end, rim in zip(ends, rims, strict=True)]
        return plan_halo(layout, dtype, rims, needed, plan.size)

    return {
        index: planned(tuple(along.stop - along.start for along in tile.extended), tile.rims)
        for index, tile in plan.tiles_of(rank).items()
        if any(map(any, tile.rims))
    }
