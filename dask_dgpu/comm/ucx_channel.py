"""One process's end of a UCX communicator: a worker, and the thread that alone uses it.

Other threads hand calls over and wait for messages. The thread takes the
calls, lets UCX progress, settles what is over, and sleeps until a socket, a device
or another thread wakes it. So nothing in UCX is called by two threads at once,
and no other thread is ever held up within UCX.

A channel ends as a whole, for UCX offers no half measures: a receive that was
begun cannot be taken back. When a peer is lost, a message is late or the
communicator is aborted, every message fails and the worker is destroyed; until
then the thread keeps all buffers alive, for UCX may still write to them. Peers
notice as they notice a lost process. An orderly end says farewell first and waits
for that of the others, lest what is on its way to them be thrown away.
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
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from ucxx._lib import libucxx
from ucxx._lib.arr import Array

from dask_dgpu.comm.protocol import Buffer
from dask_dgpu.errors import CommError

# A tag of 64 bits: which communicator of the channel, who sends, which of its messages.
_TAG_BITS = 31
_RANK_BITS = 14
_NUMBERS = 2 ** (64 - _TAG_BITS - _RANK_BITS)

# The tag of a farewell; collectives count from 1 to 2^30.
_FAREWELL = 2**_TAG_BITS - 1
# The thread looks up this often (s) even if nothing wakes it.
_LOOK = 0.1
# How long (s) an interpreter that exits waits for the farewell of others.
_LAST_WAIT = 2.0


class _EndError(Exception):
    """Ends the thread's loop; its text is the reason."""


class UcxMessage:
    """A send or a receive that was posted."""

    def __init__(self, what: str, fail: Callable[[str], None]) -> None:
        self.what = what
        self.over: Future[None] = Future()
        self._fail = fail

    def wait(self, seconds: float) -> None:
        """Block until it is over; one that is late is the end of its channel."""
        try:
            self.over.result(seconds)
        except TimeoutError:
            text = f"{self.what} did not finish within the time limit"
            self._fail(text)
            raise CommError(text) from None

    def end(self, reason: str | None = None) -> None:
        """Wake who waits; with a reason, by an error."""
        if reason is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(CommError(f"{self.what} failed: {reason}"))


@dataclass(frozen=True)
class _Posted:
    """What UCX has not finished. Dropping the request cancels it, if UCX still can."""

    number: int
    message: UcxMessage
    request: Any
    array: Any


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
        if size > 2**_RANK_BITS:
            raise ValueError(f"The size is {size}, UCX tags allow {2**_RANK_BITS} ranks at most.")
        self.rank = rank
        self.timeout = timeout
        self.device = device
        self.next_number = 1
        self._lock = threading.Lock()
        self._ended: str | None = None
        self._calls: deque[tuple[Callable[[], None], UcxMessage | None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # the rest is the thread's own
        self._posted: list[_Posted] = []
        self._parked: list[Any] = []
        self._lost: set[int] = set()
        self._parting: dict[int, UcxMessage] = {}
        self._leave_by: float | None = None
        # No daemon: one that an exiting interpreter stops in C++ ends the process.
        opened: Future[bytes] = Future()
        threading.Thread(target=self._run, args=(opened,), name="ucx").start()
        try:
            self.address = opened.result(timeout)
        except TimeoutError:
            self.fail("it came too late")
            raise CommError(f"Rank {rank}'s UCX did not start within the time limit") from None

    def connect(self, addresses: Sequence[bytes]) -> None:
        """Prepare for messages to the workers at these addresses, one a rank."""
        done = UcxMessage(f"Rank {self.rank}'s connection", self.fail)
        self._do(partial(self._connect, addresses, done), done)
        done.wait(self.timeout)

    def post(
        self, verb: str, peer: int, data: Buffer, *, number: int, tag: int, what: str
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
        self._do(partial(self._post, verb, peer, data, number, tag, message), message)
        return message

    def drop(self, number: int, reason: str) -> None:
        """End the messages of one communicator; from any thread, does not block."""
        with suppress(CommError):
            self._do(partial(self._drop, number, reason))

    def fail(self, reason: str) -> None:
        """End everything; from any thread, does not block."""
        with suppress(CommError):
            self._do(partial(self._end, reason))

    def close(self) -> None:
        """End everything as soon as no peer needs it; from any thread, does not block."""
        with suppress(CommError):
            self._do(self._say_farewell)

    def _do(self, call: Callable[[], None], message: UcxMessage | None = None) -> None:
        """Hand a call over; its message fails if the channel ends before."""
        with self._lock:
            if self._ended is not None:
                raise CommError(f"Rank {self.rank} is cut off: {self._ended}")
            self._calls.append((call, message))
            os.eventfd_write(self._wake, 1)

    # What follows runs in the thread.

    def _run(self, opened: Future[bytes]) -> None:
        try:
            self._open()
            opened.set_result(bytes(self._worker.address))
            while True:
                self._turn()
        except _EndError as end:
            reason = str(end)
        except Exception as error:
            reason = f"UCX failed: {error}"
            if not opened.done():
                opened.set_exception(CommError(f"Rank {self.rank} has no UCX: {error}"))
        with self._lock:
            self._ended = reason
            os.close(self._wake)
        unheard = [message for _, message in self._calls if message is not None]
        for message in (*unheard, *(posted.message for posted in self._posted)):
            message.end(reason)
        self._release()

    def _open(self) -> None:
        if self.device is not None:
            import cupy

            # UCX looks for CUDA's context in the thread that calls it
            cupy.cuda.Device(self.device).use()
            cupy.cuda.runtime.free(0)
        self._endpoints: dict[int, Any] = {}
        features = (libucxx.Feature.TAG, libucxx.Feature.WAKEUP)
        self._worker: Any = libucxx.UCXWorker(libucxx.UCXContext(feature_flags=features))
        self._worker.init_blocking_progress_mode()
        self._poll = select.poll()
        for descriptor in (self._wake, self._worker.epoll_file_descriptor):
            self._poll.register(descriptor, select.POLLIN)

    def _turn(self) -> None:
        while self._calls:
            call, _ = self._calls.popleft()
            call()
        self._worker.progress()
        self._settle()
        self._look_at_peers()
        if not self._calls and self._worker.arm():
            self._poll.poll(1000 * _LOOK)
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake)

    def _settle(self) -> None:
        under_way = []
        for posted in self._posted:
            if posted.request.completed:
                posted.message.end(_error_of(posted.request))
            else:
                under_way.append(posted)
        self._posted = under_way

    def _look_at_peers(self) -> None:
        staying = {peer for peer, farewell in self._parting.items() if not farewell.over.done()}
        lost = staying & self._lost
        if self._leave_by is None:
            if lost:
                self._end(f"rank {min(lost)} is lost")
            if not threading.main_thread().is_alive():
                self._say_farewell()
                self._leave_by = time.monotonic() + _LAST_WAIT
        elif staying == lost or time.monotonic() > self._leave_by:
            self._end("it was closed")
        elif not threading.main_thread().is_alive():
            self._leave_by = min(self._leave_by, time.monotonic() + _LAST_WAIT)

    def _connect(self, addresses: Sequence[bytes], done: UcxMessage) -> None:
        peer = self.rank
        try:
            for peer, address in enumerate(addresses):
                if peer == self.rank:
                    continue
                at = libucxx.UCXAddress.create_from_buffer(address)
                endpoint = self._worker.create_endpoint_from_worker_address(at, True)
                endpoint.set_close_callback(self._lost.add, (peer,))
                self._endpoints[peer] = endpoint
                self._parting[peer] = self._exchange_farewell("recv", peer)
        except libucxx.UCXError as error:
            done.end(f"rank {peer} cannot be reached: {error}")
        else:
            done.end()

    def _exchange_farewell(self, verb: str, peer: int) -> UcxMessage:
        message = UcxMessage(f"the farewell of rank {peer}", self.fail)
        self._post(verb, peer, np.zeros(1, np.uint8), 0, _FAREWELL, message)
        return message

    def _post(
        self, verb: str, peer: int, data: Buffer, number: int, tag: int, message: UcxMessage
    ) -> None:
        try:
            array = Array(data)
            if verb == "send":
                key = libucxx.UCXXTag(_key(number, self.rank, tag))
                request = self._endpoints[peer].tag_send(array, key)
            else:
                key = libucxx.UCXXTag(_key(number, peer, tag))
                request = self._worker.tag_recv(array, key)
        except Exception as error:
            message.end(str(error))
        else:
            self._posted.append(_Posted(number, message, request, array))

    def _drop(self, number: int, reason: str) -> None:
        for posted in self._posted:
            if posted.number == number:
                posted.message.end(reason)
                self._parked.append(posted.array)
        self._posted = [posted for posted in self._posted if posted.number != number]

    def _say_farewell(self) -> None:
        if any(posted.message not in self._parting.values() for posted in self._posted):
            self._end("it was closed")
        if self._leave_by is None:
            self._leave_by = time.monotonic() + self.timeout
            for peer in self._endpoints:
                self._exchange_farewell("send", peer)

    def _end(self, reason: str) -> None:
        raise _EndError(reason)

    def _release(self) -> None:
        """Cancel, disconnect, destroy the worker, and only then let go of buffers."""
        self._parked += [posted.array for posted in self._posted]
        self._posted = []
        with suppress(AttributeError, libucxx.UCXError):  # it may have failed to open
            for endpoint in self._endpoints.values():
                endpoint.remove_close_callback()
            self._endpoints.clear()
            self._worker.progress()
            del self._worker
        self._parked.clear()


def _key(number: int, sender: int, tag: int) -> int:
    # A number comes again after 2^19 of them, long after its communicator.
    return ((number % _NUMBERS) << _RANK_BITS | sender) << _TAG_BITS | tag


def _error_of(request: Any) -> str | None:
    try:
        request.check_error()
    except libucxx.UCXError as error:
        return str(error) or type(error).__name__
    return None
