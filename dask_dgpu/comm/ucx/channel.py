"""One process's end of a UCX communicator: a UCX worker, and the only thread that uses it.

Other threads queue calls and wait for messages. The thread runs the calls, lets UCX progress,
completes messages, and sleeps until a socket, a device or another thread wakes it. So no two
threads call UCX at once, and no other thread blocks within UCX.

The loss of a peer ends only the messages with that peer. A late message and an abort end the
channel, because a started receive cannot be cancelled: every message fails, and UCX disconnects,
which the peers notice like the loss of a process. Buffers are kept until UCX releases them. An
orderly end exchanges farewells with all peers first, so that no sent data is discarded.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

import numpy as np

from dask_dgpu.comm.point_to_point import Verb
from dask_dgpu.comm.protocol import Buffer
from dask_dgpu.comm.ucx.worker import RANK_BITS, TAG_BITS, UcxMessage, UcxWorker
from dask_dgpu.errors import CommError

# Longest sleep in seconds.
_LONGEST_SLEEP = 0.1
# The tag of a farewell; collectives count from 1 to 2^30.
_FAREWELL = 2**TAG_BITS - 1
# Seconds for sent data to reach a peer before UCX disconnects.
_LINGER = 0.1
# Seconds for which an exiting interpreter waits for the farewells of others.
_LAST_WAIT = 2.0


class _EndError(Exception):
    """Ends the thread's loop; its text is the reason."""


class UcxChannel:
    """The messages between this process and its peers, which connect to ``address``.

    ``timeout`` are the seconds to create the worker, and to wait for the farewells of others;
    ``device`` is the CUDA device of the arrays, ``None`` for NumPy's. UCX listens on ``ports`` from
    the first to the last, ``None`` for any.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        timeout: float,
        device: int | None,
        ports: tuple[int, int] | None = None,
    ) -> None:
        if size > 2**RANK_BITS:
            raise ValueError(f"expected at most {2**RANK_BITS} ranks, got {size}")
        self.rank = rank
        self.timeout = timeout
        self.device = device
        self._ports = ports
        self._lock = threading.Lock()
        self._ended: str | None = None
        self._calls: deque[tuple[Callable[[UcxWorker], None], UcxMessage | None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._farewells: dict[int, UcxMessage] = {}
        self._leave_by: float | None = None
        address: Future[bytes] = Future()
        # No daemon: an exiting interpreter that stops one within C++ ends the process.
        threading.Thread(target=self._run, args=(address,), name="ucx", daemon=False).start()
        try:
            self.address = address.result(timeout)
        except TimeoutError:
            self.fail("it started too late")
            raise CommError(f"rank {rank}'s UCX did not start within the time limit") from None

    def connect(self, addresses: Sequence[bytes]) -> None:
        """Prepare for messages to the workers at these addresses, one per rank."""
        done = UcxMessage(f"rank {self.rank}'s connection", self.fail)
        self._do(lambda worker: self._connect(worker, addresses, done), done)
        done.wait(self.timeout)

    def post(self, verb: Verb, peer: int, data: Buffer, tag: int, what: str) -> UcxMessage:
        """Post a message of bytes; messages with one verb, peer and tag are in order.

        The data must not change until the message is done. Errors call it ``what``.
        """
        message = UcxMessage(what, self.fail)
        self._do(lambda worker: worker.post(verb, peer, data, tag, message), message)
        return message

    def fail(self, reason: str) -> None:
        """End everything; from any thread, does not block."""
        with suppress(CommError):
            self._do(lambda worker: _end(reason))

    def close(self) -> None:
        """End everything once no peer needs it; from any thread, does not block."""
        with suppress(CommError):
            self._do(partial(self._say_farewell, seconds=self.timeout))

    def _do(self, call: Callable[[UcxWorker], None], message: UcxMessage | None = None) -> None:
        """Queue a call; its message fails if the channel ends first."""
        with self._lock:
            if self._ended is not None:
                raise CommError(f"rank {self.rank} is disconnected: {self._ended}")
            self._calls.append((call, message))
            os.eventfd_write(self._wake, 1)

    # The methods below run in the thread.

    def _run(self, address: Future[bytes]) -> None:
        try:
            worker = UcxWorker(self.rank, self.device, self._ports)
            worker.wake_by(self._wake)
        except Exception as error:
            self._hang_up("it has no UCX")
            address.set_exception(CommError(f"rank {self.rank} has no UCX: {error}"))
        else:
            address.set_result(worker.address)
            reason = self._serve(worker)
            self._hang_up(reason)
            worker.fail(reason)
            leave_by = time.monotonic() + _LINGER
            while time.monotonic() < leave_by:
                worker.progress()
                worker.sleep(_LINGER / 10)
            worker.release()
        os.close(self._wake)

    def _serve(self, worker: UcxWorker) -> str:
        """Serve until the end; return its reason."""
        try:
            while True:
                self._turn(worker)
        except _EndError as end:
            return str(end)
        except Exception as error:
            return f"UCX failed: {error}"

    def _hang_up(self, reason: str) -> None:
        with self._lock:
            self._ended = reason
        for _, message in self._calls:
            if message is not None:
                message.end(reason)
        self._calls.clear()

    def _turn(self, worker: UcxWorker) -> None:
        while self._calls:
            call, _ = self._calls.popleft()
            call(worker)
        worker.progress()
        self._check_peers(worker)
        if not self._calls:
            worker.sleep(_LONGEST_SLEEP)
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake)

    def _check_peers(self, worker: UcxWorker) -> None:
        staying = {peer for peer, farewell in self._farewells.items() if not farewell.succeeded()}
        late = self._leave_by is not None and time.monotonic() > self._leave_by
        if late or (self._leave_by is not None and staying <= worker.lost):
            _end("it was closed")
        if not threading.main_thread().is_alive():
            self._say_farewell(worker, _LAST_WAIT)

    def _connect(self, worker: UcxWorker, addresses: Sequence[bytes], done: UcxMessage) -> None:
        try:
            worker.connect(addresses)
        except Exception as error:
            done.end(str(error))
            return
        for peer in range(len(addresses)):
            if peer != self.rank:
                self._farewells[peer] = self._exchange_farewell(worker, "recv", peer)
        done.end()

    def _exchange_farewell(self, worker: UcxWorker, verb: Verb, peer: int) -> UcxMessage:
        message = UcxMessage(f"the farewell of rank {peer}", self.fail)
        worker.post(verb, peer, np.zeros(1, np.uint8), _FAREWELL, message)
        return message

    def _say_farewell(self, worker: UcxWorker, seconds: float) -> None:
        """Wait up to ``seconds`` for the peers' farewells, but not for pending messages."""
        leave_by = time.monotonic() + seconds
        if self._leave_by is not None:
            self._leave_by = min(self._leave_by, leave_by)
            return
        worker.progress()
        if set(worker.pending()) - set(self._farewells.values()):
            _end("it was closed")
        self._leave_by = leave_by
        for peer in self._farewells:
            self._exchange_farewell(worker, "send", peer)


def _end(reason: str) -> None:
    raise _EndError(reason)
