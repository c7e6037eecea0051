"""One process's end of a UCX communicator: a worker, and the thread that alone uses it.

Other threads hand calls over and wait for messages. The thread takes the
calls, lets UCX progress, ends messages that are over, and sleeps until a socket, a
device or another thread wakes it. So nothing in UCX is called by two threads
at once, and no other thread is ever held up within UCX.

The loss of a peer ends the messages with it alone. A message that is late and an
abort end the channel, for a receive that was begun cannot be taken back: every
message fails, and UCX disconnects, which the peers notice as they notice a lost
process. Buffers are kept until UCX is done with them. An orderly end says
farewell first and waits for that of the others, lest what is on its way to them
be thrown away.
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
from typing import Literal

import numpy as np

from dask_dgpu.comm.protocol import Buffer
from dask_dgpu.comm.ucx.worker import RANK_BITS, TAG_BITS, UcxMessage, UcxWorker
from dask_dgpu.errors import CommError

# Sleep is looked after this often (s) even if nothing ends it.
_LOOK = 0.1
# The tag of a farewell; collectives count from 1 to 2^30.
_FAREWELL = 2**TAG_BITS - 1
# How long (s) what was sent may take to get to a peer before UCX disconnects.
_LINGER = 0.1
# How long (s) an interpreter that exits waits for the farewell of others.
_LAST_WAIT = 2.0


class _EndError(Exception):
    """Ends the thread's loop; its text is the reason."""


class UcxChannel:
    """The messages between this process and its peers.

    Parameters
    ----------
    rank, size : int
        Which rank of how many this is.
    timeout : float
        Seconds for the worker to be made, and for others to say farewell.
    device : int, optional
        The CUDA device whose arrays are sent, as this process numbers them; without
        one it is NumPy arrays.

    Attributes
    ----------
    address : bytes
        What peers need to connect.
    next_number : int
        One that no communicator of this channel has had; see ``split``.
    """

    def __init__(self, rank: int, size: int, timeout: float, device: int | None) -> None:
        if size > 2**RANK_BITS:
            raise ValueError(f"The size is {size}, UCX tags allow {2**RANK_BITS} ranks at most.")
        self.rank = rank
        self.timeout = timeout
        self.device = device
        self.next_number = 1
        self._lock = threading.Lock()
        self._ended: str | None = None
        self._calls: deque[tuple[Callable[[UcxWorker], None], UcxMessage | None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._farewells: dict[int, UcxMessage] = {}
        self._leave_by: float | None = None
        address: Future[bytes] = Future()
        # No daemon, as its maker may be: one that an exiting interpreter stops in C++
        # ends the process.
        threading.Thread(target=self._run, args=(address,), name="ucx", daemon=False).start()
        try:
            self.address = address.result(timeout)
        except TimeoutError:
            self.fail("it came too late")
            raise CommError(f"Rank {rank}'s UCX did not start within the time limit") from None

    def connect(self, addresses: Sequence[bytes]) -> None:
        """Prepare for messages to the workers at these addresses, one a rank."""
        done = UcxMessage(f"Rank {self.rank}'s connection", self.fail)
        self._do(lambda worker: self._connect(worker, addresses, done), done)
        done.wait(self.timeout)

    def post(
        self,
        verb: Literal["send", "recv"],
        peer: int,
        data: Buffer,
        *,
        number: int,
        tag: int,
        what: str,
    ) -> UcxMessage:
        """Post a message of bytes; those of one peer, number and tag arrive in order.

        Parameters
        ----------
        verb : {"send", "recv"}
            Which way it goes.
        peer : int
            The other rank.
        data : array
            Bytes, which must be left alone until the message is over.
        number, tag : int
            The communicator's, and one of its tags.
        what : str
            What errors call it.
        """
        message = UcxMessage(what, self.fail)
        self._do(lambda worker: worker.post(verb, peer, data, number, tag, message), message)
        return message

    def drop(self, number: int, reason: str) -> None:
        """End the messages of one communicator; from any thread, does not block."""
        with suppress(CommError):
            self._do(lambda worker: worker.drop(number, reason))

    def fail(self, reason: str) -> None:
        """End everything; from any thread, does not block."""
        with suppress(CommError):
            self._do(lambda worker: _end(reason))

    def close(self) -> None:
        """End everything as soon as no peer needs it; from any thread, does not block."""
        with suppress(CommError):
            self._do(partial(self._say_farewell, seconds=self.timeout))

    def _do(self, call: Callable[[UcxWorker], None], message: UcxMessage | None = None) -> None:
        """Hand a call over; its message fails if the channel ends before."""
        with self._lock:
            if self._ended is not None:
                raise CommError(f"Rank {self.rank} is cut off: {self._ended}")
            self._calls.append((call, message))
            os.eventfd_write(self._wake, 1)

    # What follows runs in the thread.

    def _run(self, address: Future[bytes]) -> None:
        try:
            worker = UcxWorker(self.rank, self.device)
            worker.wake_by(self._wake)
        except Exception as error:
            self._hang_up("it has no UCX")
            address.set_exception(CommError(f"Rank {self.rank} has no UCX: {error}"))
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
        """Take turns until the end; return its reason."""
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
        self._look_at_peers(worker)
        if not self._calls:
            worker.sleep(_LOOK)
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake)

    def _look_at_peers(self, worker: UcxWorker) -> None:
        staying = {peer for peer, farewell in self._farewells.items() if not farewell.came()}
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

    def _exchange_farewell(
        self, worker: UcxWorker, verb: Literal["send", "recv"], peer: int
    ) -> UcxMessage:
        message = UcxMessage(f"the farewell of rank {peer}", self.fail)
        worker.post(verb, peer, np.zeros(1, np.uint8), 0, _FAREWELL, message)
        return message

    def _say_farewell(self, worker: UcxWorker, seconds: float) -> None:
        """Stay so long for peers that have not said theirs; not at all for messages of ours."""
        leave_by = time.monotonic() + seconds
        if self._leave_by is not None:
            self._leave_by = min(self._leave_by, leave_by)
            return
        worker.progress()
        if set(worker.under_way()) - set(self._farewells.values()):
            _end("it was closed")
        self._leave_by = leave_by
        for peer in self._farewells:
            self._exchange_farewell(worker, "send", peer)


def _end(reason: str) -> None:
    raise _EndError(reason)
