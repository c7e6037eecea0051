"""Messages of a step: packing its pieces, one message for each peer, and unpacking them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Any

import numpy as np

from dask_dgpu.algorithms.summa.plan import SummaPlan
from dask_dgpu.algorithms.summa.schedule import Piece, Step
from dask_dgpu.comm.protocol import Comm, Work
from dask_dgpu.kernels.device import Device

Array = Any
Blocks = Mapping[tuple[int, int], Array]


class Messages:
    """The two message buffers of a rank, for all steps.

    The outgoing buffer of a step is free after its exchange, before its pieces are unpacked; so one
    buffer for each direction is enough.
    """

    def __init__(self, plan: SummaPlan, comm: Comm, device: Device, steps: list[Step]) -> None:
        self.comm = comm
        self.dtypes = (plan.a.dtype, plan.b.dtype)
        self.out_counts = {id(step): step.send_counts(plan.size) for step in steps}
        self.in_counts = {id(step): step.receive_counts(plan.size) for step in steps}
        with device.transferring():
            out, inbox = (max(map(sum, c.values())) for c in (self.out_counts, self.in_counts))
            self.out = device.workspace("out", out, "uint8")
            self.inbox = device.workspace("inbox", inbox, "uint8")

    def send(self, step: Step, operands: tuple[Blocks, Blocks]) -> Work | None:
        """Pack a step's pieces and start their exchange; ``None`` if nothing moves."""
        if not step.moves:
            return None
        for piece, view in self._views(step.sends, self.out):
            view[...] = operands[piece.operand][piece.block][piece.source]
        out_counts, in_counts = self.out_counts[id(step)], self.in_counts[id(step)]
        return self.comm.all_to_all(
            self.inbox[: sum(in_counts)], in_counts, self.out[: sum(out_counts)], out_counts
        )

    def unpack(self, step: Step, under_way: Work | None, place: Callable[[Piece], Array]) -> None:
        """Wait for a step's exchange and copy its pieces to their ``place``."""
        if under_way is None:
            return
        under_way.wait()
        for piece, view in self._views(step.receives, self.inbox):
            place(piece)[...] = view

    def close(self) -> None:
        """Do nothing: all exchanges are complete."""

    def _views(
        self, pieces: Mapping[int, list[Piece]], buffer: Array
    ) -> Iterable[tuple[Piece, Array]]:
        """Yield each piece with its place in a message buffer, as an array of its dtype."""
        ordered = [piece for peer in sorted(pieces) for piece in pieces[peer]]
        starts = (0, *accumulate(piece.aligned for piece in ordered))
        for piece, start in zip(ordered, starts, strict=False):
            dtype = np.dtype(self.dtypes[piece.operand])
            yield piece, buffer[start : start + piece.nbytes].view(dtype).reshape(piece.shape)
