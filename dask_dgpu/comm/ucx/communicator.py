"""Ranks as processes with NumPy or CuPy arrays, over UCX.

UCX finds its own way between two processes: TCP, and between GPUs also CUDA's
peer copies or InfiniBand, as the environment (``UCX_TLS`` and others) allows. It
carries messages only; :mod:`dask_dgpu.comm.point_to_point` makes collectives of them.

UCX knows no streams. So on a GPU this transport synchronises with the host where
NCCL does not: the caller's stream is waited for before a message of its arrays is
posted, and ``wait`` returns when the data is there. What a collective computes
on the way, a reduction, runs on the stream that was current when it was called.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from dask_dgpu.comm.buffers import settle
from dask_dgpu.comm.lifetime import Lifetime
from dask_dgpu.comm.point_to_point import Message, PointToPointComm, Steps
from dask_dgpu.comm.protocol import Buffer, Work
from dask_dgpu.comm.rendezvous import KeyValueStore, meet
from dask_dgpu.comm.ucx.channel import UcxChannel


class UcxComm(PointToPointComm):
    """One rank over UCX; see :class:`~dask_dgpu.comm.protocol.Comm`.

    A communicator and its children share one channel. A message that is late or
    whose peer is lost ends all of them, an abort those below the one that is aborted.

    Parameters
    ----------
    channel : UcxChannel
        What carries the messages.
    ranks : list of int
        The channel's rank of each rank.
    rank : int
        Which of them this is.
    timeout : float
        Seconds to connect.
    limit : float or None
        Seconds after which a wait raises; ``None`` waits until aborted.
    number : int, optional
        Of this communicator among those of the channel; 0 is the one that owns it.
    """

    def __init__(
        self,
        channel: UcxChannel,
        ranks: list[int],
        rank: int,
        timeout: float,
        limit: float | None,
        number: int = 0,
    ) -> None:
        super().__init__(rank, len(ranks), timeout, limit, self._cut)
        self._channel = channel
        self._ranks = ranks
        self._number = number
        self._closing = False

    def split(self, color: int | None, key: int) -> UcxComm | None:
        """Make one communicator of all ranks that pass the same ``color``."""
        said = np.zeros((self.size, 4), np.int64)
        mine = [color is not None, color or 0, key, self._channel.next_number]
        self.all_gather(said, np.array(mine, np.int64)).wait()
        # A number that none of the ranks has used; other groups may share it.
        number = int(said[:, 3].max())
        self._channel.next_number = number + 1
        if color is None:
            return None
        members = [p for p in range(self.size) if said[p, 0] and said[p, 1] == color]
        members.sort(key=lambda peer: (said[peer, 2], peer))
        child = UcxComm(
            self._channel,
            [self._ranks[peer] for peer in members],
            members.index(self.rank),
            self.timeout,
            self.limit,
            number,
        )
        self._lifetime.adopt(child._lifetime)
        return child

    def close(self) -> None:
        """Release the transport, children too; never blocks, even if peers are gone."""
        self._closing = True
        self._lifetime.abort("it was closed")

    def _cut(self) -> None:
        """End the messages, when the lifetime has ended."""
        if self._number:
            self._channel.drop(self._number, "the communicator has ended")
        elif self._closing:
            self._channel.close()
        else:
            self._channel.fail("its communicator was aborted")

    def _start(self, name: str, steps: Steps) -> Work:
        if self._channel.device is None:
            return super()._start(name, steps)
        from dask_dgpu.comm.ucx.stream import OrderedWork, Place

        place = Place(self._channel.device)
        return OrderedWork(super()._start(name, place.run(steps)), place)

    def _post_send(self, peer: int, data: Buffer, tag: int) -> Message:
        return self._post_message("send", peer, data, tag)

    def _post_recv(self, peer: int, data: Buffer, tag: int) -> Message:
        return self._post_message("recv", peer, data, tag)

    def _post_message(
        self, verb: Literal["send", "recv"], peer: int, data: Buffer, tag: int
    ) -> Message:
        if self._channel.device is None and hasattr(data, "__cuda_array_interface__"):
            raise ValueError("A buffer is on a GPU, but this communicator has no device.")
        settle(data)
        what = f"Rank {self.rank}'s {'send to' if verb == 'send' else 'receive from'} rank {peer}"
        return self._channel.post(
            verb, self._ranks[peer], data, number=self._number, tag=tag, what=what
        )


def join(
    store: KeyValueStore,
    *,
    rank: int,
    size: int,
    timeout: float,
    limit: float | None,
    device: int | None,
    lifetime: Lifetime,
) -> UcxComm:
    """Become one of ``size`` ranks, all of which call this at the same time.

    Parameters
    ----------
    store : torch.distributed.Store
        The store of these ranks alone: a prefix used once.
    rank, size : int
        Which rank of how many this is.
    timeout : float
        Seconds to connect with the others.
    limit : float or None
        Seconds after which a later wait raises; ``None`` waits until aborted.
    device : int or None
        The CUDA device of this rank, as this process numbers them; ``None`` if its
        arrays are NumPy's.
    lifetime : Lifetime
        Ends the waiting for the others.
    """
    channel = UcxChannel(rank, size, timeout, device)
    try:
        mine = channel.address.hex()
        addresses = meet(store, "ucx", mine, rank=rank, size=size, limit=timeout, lifetime=lifetime)
        channel.connect([bytes.fromhex(address) for address in addresses])
        comm = UcxComm(channel, list(range(size)), rank, timeout, limit=timeout)
        lifetime.adopt(comm._lifetime)
        comm.barrier()  # UCX connects by the first message, and then notices a lost peer
        comm.limit = limit
    except BaseException:
        channel.fail("it did not connect")
        raise
    return comm
