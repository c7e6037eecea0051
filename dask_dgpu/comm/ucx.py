"""Ranks as processes with NumPy or CuPy arrays, over UCX.

UCX selects the path between two processes: TCP, and between GPUs also CUDA's peer copies or
InfiniBand, as the environment (``UCX_TLS`` and others) allows. It only carries messages;
:mod:`dask_dgpu.comm.point_to_point` composes collectives from them.

UCX knows no streams. So on a GPU the host waits, unlike over NCCL: for the caller's stream
before it posts a message of the stream's arrays, and in ``wait`` until the data has arrived.
Computations within a collective, its reductions, run on the caller's current stream.

One thread creates, uses and releases UCX's worker. Other threads queue calls and wait for messages.
The thread runs the calls, lets UCX progress, completes messages, and sleeps until a socket, a
device or another thread wakes it. So no two threads call UCX at once, and no other thread blocks
within UCX.

The loss of a peer ends only the messages with that peer. An abort disconnects the rank, because a
started receive cannot be cancelled: every message fails, which the peers notice like the loss of a
process. Buffers are kept until UCX releases them. An orderly end exchanges
farewells with all peers first, so that no sent data is discarded.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from hmac import compare_digest
from secrets import token_hex
from typing import Any

import numpy as np
from ucxx._lib import libucxx
from ucxx._lib.arr import Array

from dask_dgpu.comm.common import Lifetime, settle
from dask_dgpu.comm.point_to_point import PointToPointComm, Posted, Steps, Verb
from dask_dgpu.comm.protocol import Buffer, Work
from dask_dgpu.comm.store import Store, meet
from dask_dgpu.errors import CommError

SECRET_BYTES = 32
"""Bytes of a rank's secret, new for each epoch."""

# UCX's tags have 64 bits: the sender and our tag.
_TAG_BITS = 31
# The tag of a farewell; collectives count from 1 to 2^30.
_FAREWELL = 2**_TAG_BITS - 1

# Longest sleep in seconds.
_LONGEST_SLEEP = 0.1
# Seconds between two looks at transfers that UCX has not released.
_PAUSE = 0.01
# Seconds for sent data to reach a peer before UCX disconnects.
_LINGER = 0.1
# Seconds for which an exiting interpreter waits for the farewells of others.
_LAST_WAIT = 2.0


class UcxMessage(Posted):
    """A posted send or receive.

    To drop the request cancels it, if UCX still can. The buffer is kept with it.
    """

    def __init__(self, what: str, comm: UcxComm, peer: int) -> None:
        super().__init__(what, comm.changed)
        self.peer = peer
        self.request: Any = None
        self.buffer: Any = None


class _EndError(Exception):
    """Ends the thread's loop; its text is the reason."""


class UcxComm(PointToPointComm):
    """One rank over UCX, to whose ``address`` others connect; see :class:`~.protocol.Comm`.

    It waits for the farewells of others for ``timeout`` seconds. ``device`` is the CUDA device of
    the arrays, ``None`` for NumPy's. UCX listens on ``ports`` from the first to the last, ``None``
    for any.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        timeout: float,
        device: int | None,
        ports: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(rank, size, self._end_messages)
        self.timeout = timeout
        self.device = device
        self.changed = threading.Condition()
        self._ports = ports
        self._lock = threading.Lock()
        self._ended: str | None = None
        self._queue: deque[tuple[Callable[[], None], UcxMessage | None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._worker: Any = None
        self._poll = select.poll()
        self._endpoints: dict[int, Any] = {}
        self._posted: list[UcxMessage] = []
        self._lost: set[int] = set()
        self._farewells: dict[int, UcxMessage] = {}
        self._leave_by: float | None = None
        address: Future[bytes] = Future()
        # No daemon: an exiting interpreter that stops one within C++ ends the process.
        threading.Thread(target=self._run, args=(address,), name="ucx", daemon=False).start()
        self.address = address.result()

    def connect(self, addresses: Sequence[bytes]) -> None:
        """Prepare for messages to the workers at these addresses, one per rank."""
        done = UcxMessage(f"rank {self.rank}'s connection", self, self.rank)
        self._do(partial(self._connect, addresses, done), done)
        done.wait()

    def disconnect(self, reason: str) -> None:
        """End all messages; from any thread, does not block."""
        with suppress(CommError):
            self._do(partial(_end, reason))

    def _end_messages(self) -> None:
        """End all messages, after a close once no peer needs them."""
        if self._lifetime.closed:
            with suppress(CommError):
                self._do(partial(self._say_farewell, self.timeout))
        else:
            self.disconnect("its communicator was aborted")

    def _start(self, name: str, steps: Steps, nbytes: int | None = None) -> Work:
        if self.device is None:
            return super()._start(name, steps, nbytes)
        ordered = _OrderedWork(self.device)
        ordered.work = super()._start(name, ordered.run(steps), nbytes)
        return ordered

    def _post_message(self, verb: Verb, peer: int, data: Buffer, tag: int, what: str) -> Posted:
        if self.device is None and hasattr(data, "__cuda_array_interface__"):
            raise ValueError("expected a buffer on the host, got one on a GPU")
        settle(data)
        message = UcxMessage(what, self, peer)
        self._do(partial(self._issue, verb, data, tag, message), message)
        return message

    def _do(self, call: Callable[[], None], message: UcxMessage | None = None) -> None:
        """Queue a call; its message fails if the rank is disconnected first."""
        with self._lock:
            if self._ended is not None:
                raise CommError(f"rank {self.rank} is disconnected: {self._ended}")
            self._queue.append((call, message))
            os.eventfd_write(self._wake, 1)

    # The methods below run in the thread.

    def _run(self, address: Future[bytes]) -> None:
        try:
            self._create_worker()
        except Exception as error:
            self._hang_up("it has no UCX")
            address.set_exception(CommError(f"rank {self.rank} has no UCX: {error}"))
        else:
            address.set_result(bytes(self._worker.address))
            self._hang_up(self._serve())
            leave_by = time.monotonic() + _LINGER
            while time.monotonic() < leave_by:
                self._progress()
                self._sleep(_LINGER / 10)
            self._release()
        os.close(self._wake)

    def _create_worker(self) -> None:
        if self.device is not None:
            import cupy

            # UCX needs CUDA's context in the calling thread
            cupy.cuda.Device(self.device).use()
            cupy.cuda.runtime.free(0)
        features = (libucxx.Feature.TAG, libucxx.Feature.WAKEUP)
        ports = self._ports
        options = {} if ports is None else {"TCP_PORT_RANGE": f"{ports[0]}-{ports[1]}"}
        context = libucxx.UCXContext(config_dict=options, feature_flags=features)
        self._worker = libucxx.UCXWorker(context)
        self._worker.init_blocking_progress_mode()
        self._poll.register(self._worker.epoll_file_descriptor, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)

    def _serve(self) -> str:
        """Serve until the end; return its reason."""
        try:
            while True:
                self._turn()
        except _EndError as end:
            return str(end)
        except Exception as error:
            return f"UCX failed: {error}"

    def _hang_up(self, reason: str) -> None:
        """Fail all messages; transfers continue until the release."""
        with self._lock:
            self._ended = reason
        for message in (*self._posted, *(message for _, message in self._queue)):
            if message is not None:
                message.fail(reason)
        self._queue.clear()

    def _release(self) -> None:
        """Disconnect, and free buffers once UCX has released them."""
        for endpoint in self._endpoints.values():
            endpoint.remove_close_callback()
            endpoint.close_blocking()  # forced, so it does not wait for peers
        while any(not message.request.completed for message in self._posted):
            self._worker.progress()
            if not threading.main_thread().is_alive():
                break
            time.sleep(_PAUSE)
        # Requests and endpoints refer to the worker, which ends with the last of them.
        for message in self._posted:
            message.request = message.buffer = None
        self._endpoints.clear()
        self._worker = None

    def _turn(self) -> None:
        while self._queue:
            call, _ = self._queue.popleft()
            call()
        self._progress()
        self._check_peers()
        if not self._queue:
            self._sleep(_LONGEST_SLEEP)
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake)

    def _progress(self) -> None:
        """Let UCX progress, and complete finished messages."""
        self._worker.progress()
        posted, self._posted = self._posted, []
        for message in posted:
            if not message.request.completed:
                self._posted.append(message)
                continue
            error = _error_of(message.request)
            message.request = message.buffer = None
            if error is not None and message.peer in self._lost:
                error = "the peer is lost"
            message.end(fault=error)

    def _sleep(self, seconds: float) -> None:
        """Wait for an event, at most for some seconds."""
        if self._worker.arm():
            self._poll.poll(1000 * seconds)

    def _check_peers(self) -> None:
        if self._leave_by is not None:
            staying = {p for p, each in self._farewells.items() if not each.over or each.fault}
            if time.monotonic() > self._leave_by or staying <= self._lost:
                _end("it was closed")
        if not threading.main_thread().is_alive():
            self._say_farewell(_LAST_WAIT)

    def _connect(self, addresses: Sequence[bytes], done: UcxMessage) -> None:
        """Create an endpoint for each address except this rank's; sends nothing yet."""
        others = [peer for peer in range(len(addresses)) if peer != self.rank]
        try:
            for peer in others:
                address = libucxx.UCXAddress.create_from_buffer(addresses[peer])
                endpoint = self._worker.create_endpoint_from_worker_address(address, True)
                endpoint.set_close_callback(self._lost.add, (peer,))
                self._endpoints[peer] = endpoint
        except Exception as error:
            done.fail(str(error))
            return
        for peer in others:
            self._farewells[peer] = self._exchange_farewell("recv", peer)
        done.end()

    def _issue(self, verb: Verb, data: Buffer, tag: int, message: UcxMessage) -> None:
        """Post a message, which keeps its buffer; errors go to the message."""
        try:
            array, endpoint = Array(data), self._endpoints[message.peer]
            post, sender = endpoint.tag_send, self.rank
            if verb == "recv":
                post, sender = endpoint.tag_recv, message.peer
            message.request = post(array, libucxx.UCXXTag(sender << _TAG_BITS | tag))
        except Exception as error:
            message.fail(str(error))
        else:
            message.buffer = array
            self._posted.append(message)

    def _exchange_farewell(self, verb: Verb, peer: int) -> UcxMessage:
        message = UcxMessage(f"the farewell of rank {peer}", self, peer)
        self._issue(verb, np.zeros(1, np.uint8), _FAREWELL, message)
        return message

    def _say_farewell(self, seconds: float) -> None:
        """Wait up to ``seconds`` for the peers' farewells, but not for pending messages."""
        leave_by = time.monotonic() + seconds
        if self._leave_by is not None:
            self._leave_by = min(self._leave_by, leave_by)
            return
        self._progress()
        if set(self._posted) - set(self._farewells.values()):
            _end("it was closed")
        self._leave_by = leave_by
        for peer in self._farewells:
            self._exchange_farewell("send", peer)


def _end(reason: str) -> None:
    raise _EndError(reason)


def _error_of(request: Any) -> str | None:
    try:
        request.check_error()
    except libucxx.UCXError as error:
        return str(error) or type(error).__name__
    return None


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
    device: int | None,
    ports: tuple[int, int] | None,
    lifetime: Lifetime,
) -> UcxComm:
    """Connect as one of ``size`` ranks, all of which call this at the same time.

    ``store`` is for these ranks only. ``device`` is ``None`` for NumPy arrays. It
    listens on ``ports`` from the first to the last, ``None`` for any. Other ranks are awaited for
    ``timeout`` seconds. Connecting ends if ``lifetime`` is aborted.
    """
    comm = UcxComm(rank, size, timeout, device, ports)
    try:
        lifetime.adopt(comm._lifetime)
        mine = f"{comm.address.hex()} {token_hex(SECRET_BYTES)}"
        texts = meet(store, "ucx", mine, rank=rank, size=size, limit=timeout, lifetime=lifetime)
        addresses = [tuple(map(bytes.fromhex, text.split())) for text in texts]
        comm.connect([address for address, _ in addresses])
        _greet(comm, [secret for _, secret in addresses])
    except BaseException:
        comm.abort("it did not connect")
        raise
    return comm
