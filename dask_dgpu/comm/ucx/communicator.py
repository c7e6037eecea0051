"""Ranks as processes with NumPy or CuPy arrays, over UCX.

UCX selects the path between two processes: TCP, and between GPUs also CUDA's peer copies or
InfiniBand, as the environment (``UCX_TLS`` and others) allows. It only carries messages;
:mod:`dask_dgpu.comm.point_to_point` composes collectives from them.

UCX knows no streams. So on a GPU the host waits, unlike over NCCL: for the caller's stream
before it posts a message of the stream's arrays, and in ``wait`` until the data has arrived.
Computations within a collective, its reductions, run on the caller's current stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from hmac import compare_digest
from secrets import token_hex

import numpy as np

from dask_dgpu.comm.common import Lifetime, settle
from dask_dgpu.comm.point_to_point import PointToPointComm, Verb
from dask_dgpu.comm.protocol import Buffer, Work
from dask_dgpu.comm.steps import Message, Steps
from dask_dgpu.comm.store import Store, meet
from dask_dgpu.comm.ucx.channel import UcxChannel
from dask_dgpu.errors import CommError

SECRET_BYTES = 32
"""Bytes of a rank's secret, new for each epoch."""


class UcxComm(PointToPointComm):
    """One rank over UCX; see :class:`~dask_dgpu.comm.protocol.Comm`."""

    def __init__(self, channel: UcxChannel, size: int, limit: float | None) -> None:
        super().__init__(channel.rank, size, limit, self._end_messages)
        self._channel = channel

    def _end_messages(self) -> None:
        if self._lifetime.closed:
            self._channel.close()
        else:
            self._channel.fail("its communicator was aborted")

    def _start(self, name: str, steps: Steps, nbytes: int | None = None) -> Work:
        if self._channel.device is None:
            return super()._start(name, steps, nbytes)
        ordered = _OrderedWork(self._channel.device)
        ordered.work = super()._start(name, ordered.run(steps), nbytes)
        return ordered

    def _post_message(self, verb: Verb, peer: int, data: Buffer, tag: int, what: str) -> Message:
        if self._channel.device is None and hasattr(data, "__cuda_array_interface__"):
            raise ValueError("expected a buffer on the host, got one on a GPU")
        settle(data)
        return self._channel.post(verb, peer, data, tag, what)


class _OrderedWork:
    """A collective on the creating thread's device and stream; callers' streams wait for it."""

    work: Work

    def __init__(self, device: int) -> None:
        import cupy

        self._cuda = cupy.cuda
        self._device = cupy.cuda.Device(device)
        with self._device:
            self._stream = cupy.cuda.get_current_stream()
            self._last = cupy.cuda.Event(disable_timing=True)

    def run(self, steps: Steps) -> Steps:
        """Run the steps on the stream, whichever thread resumes them."""
        while True:
            with self._device, self._stream:
                messages = next(steps, None)
                if messages is None:
                    self._last.record()
                    return
            yield messages

    @property
    def ended(self) -> float | None:
        """When the last message was done; copies and reductions end on the stream."""
        return self.work.ended

    def wait(self) -> None:
        """Return when all messages are done; copies and reductions are on the stream."""
        self.work.wait()
        with self._device:
            self._cuda.get_current_stream().wait_event(self._last)


def _greet(comm: UcxComm, secrets: Sequence[bytes]) -> None:
    """Present to each rank its own secret, which only those know that read the store.

    It also connects: from the first message on, UCX notices a lost peer.
    """
    others = [peer for peer in range(comm.size) if peer != comm.rank]
    received = {peer: np.zeros(SECRET_BYTES, np.uint8) for peer in others}
    sends = [(peer, np.frombuffer(secrets[peer], np.uint8)) for peer in others]
    comm.exchange(sends, list(received.items())).wait()
    for peer, secret in received.items():
        if not compare_digest(secret.tobytes(), secrets[comm.rank]):
            raise CommError(f"rank {peer} of {comm.size} does not know the secret of its epoch")


def join(
    store: Store,
    *,
    rank: int,
    size: int,
    timeout: float,
    limit: float | None,
    device: int | None,
    ports: tuple[int, int] | None,
    lifetime: Lifetime,
) -> UcxComm:
    """Connect as one of ``size`` ranks, all of which call this at the same time.

    ``store`` is for these ranks only. ``device`` is ``None`` for NumPy arrays. It
    listens on ``ports`` from the first to the last, ``None`` for any. Connecting ends
    after ``timeout`` seconds, or if ``lifetime`` is aborted. Later waits raise after ``limit``
    seconds; ``None`` waits until aborted.
    """
    channel = UcxChannel(rank, size, timeout, device, ports)
    try:
        mine = f"{channel.address.hex()} {token_hex(SECRET_BYTES)}"
        texts = meet(store, "ucx", mine, rank=rank, size=size, limit=timeout, lifetime=lifetime)
        found = [tuple(map(bytes.fromhex, text.split())) for text in texts]
        channel.connect([address for address, _ in found])
        comm = UcxComm(channel, size, limit=timeout)
        lifetime.adopt(comm._lifetime)
        _greet(comm, [secret for _, secret in found])
        comm.limit = limit
    except BaseException:
        channel.fail("it did not connect")
        raise
    return comm
