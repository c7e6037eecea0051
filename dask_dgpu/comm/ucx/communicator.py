"""Ranks as processes with NumPy or CuPy arrays, over UCX.

UCX selects the path between two processes: TCP, and between GPUs also CUDA's peer copies or
InfiniBand, as the environment (``UCX_TLS`` and others) allows. It only carries messages;
:mod:`dask_dgpu.comm.point_to_point` composes collectives from them.

UCX knows no streams. So on a GPU the host waits, unlike over NCCL: for the caller's stream
before it posts a message of the stream's arrays, and in ``wait`` until the data has arrived.
Computations within a collective, its reductions, run on the caller's current stream.
"""

from __future__ import annotations

from dask_dgpu.comm.buffers import settle
from dask_dgpu.comm.lifetime import Lifetime
from dask_dgpu.comm.point_to_point import Message, PointToPointComm, Steps, Verb
from dask_dgpu.comm.protocol import Buffer, Work
from dask_dgpu.comm.rendezvous import KeyValueStore, meet
from dask_dgpu.comm.ucx.channel import UcxChannel


class UcxComm(PointToPointComm):
    """One rank over UCX; see :class:`~dask_dgpu.comm.protocol.Comm`.

    Parameters
    ----------
    channel : UcxChannel
        Carries the messages.
    size : int
        Number of ranks.
    limit : float or None
        Seconds after which a wait raises; ``None`` waits until aborted.
    """

    def __init__(self, channel: UcxChannel, size: int, limit: float | None) -> None:
        super().__init__(channel.rank, size, limit, self._end_messages)
        self._channel = channel
        self._closing = False

    def close(self) -> None:
        """Release the transport; never blocks, even if peers are lost."""
        self._closing = True
        super().close()

    def _end_messages(self) -> None:
        if self._closing:
            self._channel.close()
        else:
            self._channel.fail("its communicator was aborted")

    def _start(self, name: str, steps: Steps) -> Work:
        if self._channel.device is None:
            return super()._start(name, steps)
        from dask_dgpu.comm.ucx.stream import OrderedWork, Place

        place = Place(self._channel.device)
        return OrderedWork(super()._start(name, place.run(steps)), place)

    def _post_message(self, verb: Verb, peer: int, data: Buffer, tag: int, what: str) -> Message:
        if self._channel.device is None and hasattr(data, "__cuda_array_interface__"):
            raise ValueError("expected a buffer on the host, got one on a GPU")
        settle(data)
        return self._channel.post(verb, peer, data, tag, what)


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
    """Connect as one of ``size`` ranks, all of which call this at the same time.

    Parameters
    ----------
    store : torch.distributed.Store
        A store for these ranks only: a prefix that is used once.
    rank, size : int
        This rank and the number of ranks.
    timeout : float
        Seconds to connect with the others.
    limit : float or None
        Seconds after which a later wait raises; ``None`` waits until aborted.
    device : int or None
        The CUDA device of this rank, in this process's numbering; ``None`` for NumPy arrays.
    lifetime : Lifetime
        Aborting it ends the connecting.
    """
    channel = UcxChannel(rank, size, timeout, device)
    try:
        mine = channel.address.hex()
        addresses = meet(store, "ucx", mine, rank=rank, size=size, limit=timeout, lifetime=lifetime)
        channel.connect([bytes.fromhex(address) for address in addresses])
        comm = UcxComm(channel, size, limit=timeout)
        lifetime.adopt(comm._lifetime)
        comm.barrier()  # the first message connects; from then on UCX notices a lost peer
        comm.limit = limit
    except BaseException:
        channel.fail("it did not connect")
        raise
    return comm
