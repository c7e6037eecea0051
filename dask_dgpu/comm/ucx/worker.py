"""A UCX worker and its endpoints: posting messages and learning what became of them.

One thread makes, uses and releases a worker; only :class:`UcxMessage` is for others.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

from ucxx._lib import libucxx
from ucxx._lib.arr import Array

from dask_dgpu.comm.protocol import Buffer
from dask_dgpu.errors import CommError

# A tag of 64 bits: which communicator of the channel, who sends, which of its messages.
TAG_BITS = 31
RANK_BITS = 14
_NUMBERS = 2 ** (64 - TAG_BITS - RANK_BITS)

_PAUSE = 0.01


class UcxMessage:
    """A send or a receive that was posted; see :class:`~.point_to_point.Message`.

    Parameters
    ----------
    what : str
        What errors call it.
    fail : callable
        Told why when it is late.
    """

    def __init__(self, what: str, fail: Callable[[str], None]) -> None:
        self.what = what
        self._over: Future[None] = Future()
        self._fail = fail

    def wait(self, seconds: float | None) -> None:
        """Block until it is over; raise ``CommError`` if it failed or is late."""
        try:
            self._over.result(seconds)
        except TimeoutError:
            text = f"{self.what} did not finish within the time limit"
            self._fail(text)
            raise CommError(text) from None

    def came(self) -> bool:
        """Whether it is over and nothing failed."""
        return self._over.done() and self._over.exception() is None

    def end(self, reason: str | None = None) -> None:
        """Wake who waits; with a reason, by an error. Only the first end counts."""
        if self._over.done():
            return
        if reason is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(CommError(f"{self.what} failed: {reason}"))


@dataclass(frozen=True)
class _Posted:
    """What UCX has not finished. Dropping the request cancels it, if UCX still can."""

    peer: int
    number: int
    message: UcxMessage
    request: Any
    array: Any


class UcxWorker:
    """A worker with an endpoint for each peer.

    Parameters
    ----------
    rank : int
        Which rank this is.
    device : int or None
        The CUDA device that the thread is to use, if it uses one.

    Attributes
    ----------
    lost : set of int
        Ranks that cannot be reached any more.
    """

    def __init__(self, rank: int, device: int | None) -> None:
        if device is not None:
            import cupy

            # UCX looks for CUDA's context in the thread that calls it
            cupy.cuda.Device(device).use()
            cupy.cuda.runtime.free(0)
        self.rank = rank
        self.lost: set[int] = set()
        self._endpoints: dict[int, Any] = {}
        self._posted: list[_Posted] = []
        self._parked: list[Any] = []
        features = (libucxx.Feature.TAG, libucxx.Feature.WAKEUP)
        self._worker: Any = libucxx.UCXWorker(libucxx.UCXContext(feature_flags=features))
        self._worker.init_blocking_progress_mode()
        self._poll = select.poll()
        self._poll.register(self._worker.epoll_file_descriptor, select.POLLIN)

    @property
    def address(self) -> bytes:
        """What peers need to connect."""
        return bytes(self._worker.address)

    def connect(self, addresses: Sequence[bytes]) -> None:
        """Make an endpoint for each of these addresses but our own; no message is sent yet."""
        for peer, address in enumerate(addresses):
            if peer != self.rank:
                at = libucxx.UCXAddress.create_from_buffer(address)
                endpoint = self._worker.create_endpoint_from_worker_address(at, True)
                endpoint.set_close_callback(self.lost.add, (peer,))
                self._endpoints[peer] = endpoint

    def post(
        self,
        verb: Literal["send", "recv"],
        peer: int,
        data: Buffer,
        number: int,
        tag: int,
        message: UcxMessage,
    ) -> None:
        """Post a send or a receive, which keeps its buffer; whatever fails, the message does."""
        try:
            array = Array(data)
            if verb == "send":
                request = self._endpoints[peer].tag_send(array, _key(number, self.rank, tag))
            else:
                request = self._endpoints[peer].tag_recv(array, _key(number, peer, tag))
        except Exception as error:
            message.end(str(error))
        else:
            self._posted.append(_Posted(peer, number, message, request, array))

    def under_way(self) -> list[UcxMessage]:
        """Return the messages that are not over."""
        return [posted.message for posted in self._posted]

    def progress(self) -> None:
        """Let UCX do what it can, and end the messages that are over."""
        self._worker.progress()
        posted, self._posted = self._posted, []
        for one in posted:
            if one.request.completed:
                error = _error_of(one.request)
                lost = error is not None and one.peer in self.lost
                one.message.end("the peer is lost" if lost else error)
            else:
                self._posted.append(one)

    def wake_by(self, descriptor: int) -> None:
        """Let sleep end when there is something to read at a descriptor."""
        self._poll.register(descriptor, select.POLLIN)

    def sleep(self, seconds: float) -> None:
        """Wait until there is something to do, or some seconds."""
        if self._worker.arm():
            self._poll.poll(1000 * seconds)

    def drop(self, number: int, reason: str) -> None:
        """Fail the messages of a number; their buffers are kept to the end all the same."""
        dropped = [posted for posted in self._posted if posted.number == number]
        self._posted = [posted for posted in self._posted if posted.number != number]
        for posted in dropped:
            posted.message.end(reason)
            self._parked.append(posted.array)

    def fail(self, reason: str) -> None:
        """Fail all messages; what they move goes on to the release."""
        for posted in self._posted:
            posted.message.end(reason)

    def release(self) -> None:
        """Disconnect, and let go of buffers as soon as UCX does."""
        for endpoint in self._endpoints.values():
            endpoint.remove_close_callback()
            endpoint.close_blocking()  # by force, so it waits for no peer
        while any(not posted.request.completed for posted in self._posted):
            self._worker.progress()
            if not threading.main_thread().is_alive():
                break
            time.sleep(_PAUSE)
        # Requests and endpoints refer to the worker, which ends with the last of them.
        self._posted.clear()
        self._endpoints.clear()
        self._worker = None
        self._parked.clear()


def _key(number: int, sender: int, tag: int) -> Any:
    # A number comes again after 2^19 of them, long after its communicator.
    return libucxx.UCXXTag(((number % _NUMBERS) << RANK_BITS | sender) << TAG_BITS | tag)


def _error_of(request: Any) -> str | None:
    try:
        request.check_error()
    except libucxx.UCXError as error:
        return str(error) or type(error).__name__
    return None
