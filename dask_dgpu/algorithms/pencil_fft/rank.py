"""The rank program of a transform."""

from __future__ import annotations

from collections.abc import MutableMapping

from dask_dgpu.algorithms import Array, Blocks, Progress, no_progress
from dask_dgpu.algorithms.pencil_fft.plan import RankedPencil, Stage
from dask_dgpu.algorithms.redistribute import redistribute_rank
from dask_dgpu.algorithms.redistribute.rank import Read
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.kernels.fft import transform
from graph_opt.model.layout import Index


def pencil_fft_rank(
    ranked: RankedPencil,
    comm: Comm,
    device: Device,
    blocks: MutableMapping[Index, Array],
    progress: Progress = no_progress,
) -> dict[Index, Array]:
    """Transform as one rank; ``progress`` counts rounds and transforms.

    If the plan says that the input is spent, ``blocks`` is emptied.

    Notes
    -----
    If slices are small enough (``move.transformed``), each slice of a block is transformed when
    it is packed, while earlier slices are in transit; no stage's result exists as a whole.
    The last stage overwrites its input if the dtype allows it.
    """
    done = 0
    owned = False  # whether nothing else refers to the present blocks
    present = cropped(blocks, ranked)
    if ranked.spent:
        blocks.clear()
    stages: list[Stage | None] = [None, *ranked.plan.stages]
    for stage, move in zip(stages, ranked.moves, strict=True):
        fused = stage is not None and move is not None and move.transformed
        if stage is not None and not fused:
            with device.computing():
                made = transform_blocks(stage, present, overwrite=owned)
            device.join()  # before the transformed blocks are freed
            present = made
            del made
            owned = True
        if move is not None:
            read = _reader(stage, present, overwrite=owned) if stage and fused else None

            def report(at: int, rounds: int, done: int = done) -> None:
                progress(done + at, ranked.steps)

            present = redistribute_rank(move, comm, device, present, read=read, progress=report)
            del read  # it refers to the blocks
            done += move.rounds
            # a block in place is passed on, and is ours only if a stage computed it
            owned = owned or stage is not None
        if stage is not None:
            done += 1
            progress(done, ranked.steps)
    return dict(present)


def _reader(stage: Stage, blocks: Blocks, *, overwrite: bool) -> Read:
    """Return the function that transforms a slice of a block."""
    whole = {each.axis for each in stage.transforms}

    def read(index: Index, slices: tuple[slice, ...]) -> Array:
        part = tuple(slice(None) if k in whole else along for k, along in enumerate(slices))
        return transform(blocks[index][part], stage.transforms, overwrite=overwrite)

    return read


def transform_blocks(stage: Stage, blocks: Blocks, *, overwrite: bool) -> dict[Index, Array]:
    """Transform blocks one by one, freeing each input block in turn."""
    left = dict(blocks)
    made = {}
    while left:
        index, block = left.popitem()
        made[index] = transform(block, stage.transforms, overwrite=overwrite)
    return made


def cropped(blocks: Blocks, ranked: RankedPencil) -> dict[Index, Array]:
    """Return views of the part of each block that the transforms use."""
    first = ranked.moves[0]
    layout = ranked.layouts[0] if first is None else first.source
    return {
        index: block[tuple(slice(0, length) for length in layout.block_shape(index))]
        for index, block in blocks.items()
        if all(at < count for at, count in zip(index, layout.grid, strict=True))
    }
