"""A UCX worker and its endpoints, which post messages and complete them.

One thread creates, uses and releases a worker; other threads use only :class:`UcxMessage`.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ucxx._lib import libucxx
from ucxx._lib.arr import Array

from dask_dgpu.comm.point_to_point import Verb
from dask_dgpu.comm.protocol import Buffer
from dask_dgpu.errors import CommError

# UCX's tags have 64 bits: the sender and our tag.
TAG_BITS = 31
RANK_BITS = 14

_PAUSE = 0.01


class UcxMessage:
    """A posted send or receive; see :class:`~.point_to_point.Message`.

    Errors call it ``what``; ``fail`` is called with the reason if it is late.
    """

    def __init__(self, what: str, fail: Callable[[str], None]) -> None:
        self.what = what
        self._over: Future[None] = Future()
        self._fail = fail

    def wait(self, seconds: float | None) -> None:
        """Block until it is done; raise ``CommError`` if it failed or is late."""
        try:
            self._over.result(seconds)
        except TimeoutError:
            text = f"{self.what} did not finish within the time limit"
            self._fail(text)
            raise CommError(text) from None

    def succeeded(self) -> bool:
        """Return whether it is done without an error."""
        return self._over.done() and self._over.exception() is None

    def end(self, reason: str | None = None) -> None:
        """Complete it; a reason makes ``wait`` raise. Only the first call counts."""
        if self._over.done():
            return
        if reason is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(CommError(f"{self.what} failed: {reason}"))


@dataclass(frozen=True)
class _Posted:
    """A message in UCX. Dropping the request cancels it, if UCX still can."""

    peer: int
    message: UcxMessage
    request: Any
    array: Any


class UcxWorker:
    """A worker with an endpoint for each peer; ``lost`` are the unreachable ranks.

    ``device`` is the CUDA device of the thread, if it uses one.
    """

    def __init__(self, rank: int, device: int | None, ports: tuple[int, int] | None) -> None:
        if device is not None:
            import cupy

            # UCX needs CUDA's context in the calling thread
            cupy.cuda.Device(device).use()
            cupy.cuda.runtime.free(0)
        self.rank = rank
        self.lost: set[int] = set()
        self._endpoints: dict[int, Any] = {}
        self._posted: list[_Posted] = []
        features = (libucxx.Feature.TAG, libucxx.Feature.WAKEUP)
        options = {} if ports is None else {"TCP_PORT_RANGE": f"{ports[0]}-{ports[1]}"}
        context = libucxx.UCXContext(config_dict=options, feature_flags=features)
        self._worker: Any = libucxx.UCXWorker(context)
        self._worker.init_blocking_progress_mode()
        self._poll = select.poll()
        self._poll.register(self._worker.epoll_file_descriptor, select.POLLIN)

    @property
    def address(self) -> bytes:
        """The address to which peers connect."""
        return bytes(self._worker.address)

    def connect(self, addresses: Sequence[bytes]) -> None:
        """Create an endpoint for each address except this rank's; sends nothing yet."""
        for peer, address in enumerate(addresses):
            if peer != self.rank:
                at = libucxx.UCXAddress.create_from_buffer(address)
                endpoint = self._worker.create_endpoint_from_worker_address(at, True)
                endpoint.set_close_callback(self.lost.add, (peer,))
                self._endpoints[peer] = endpoint

    def post(self, verb: Verb, peer: int, data: Buffer, tag: int, message: UcxMessage) -> None:
        """Post a message, which keeps its buffer; errors go to the message."""
        try:
            array = Array(data)
            if verb == "send":
                request = self._endpoints[peer].tag_send(array, _ucx_tag(self.rank, tag))
            else:
                request = self._endpoints[peer].tag_recv(array, _ucx_tag(peer, tag))
        except Exception as error:
            message.end(str(error))
        else:
            self._posted.append(_Posted(peer, message, request, array))

    def pending(self) -> list[UcxMessage]:
        """Return the messages that are not done."""
        return [posted.message for posted in self._posted]

    def progress(self) -> None:
        """Let UCX progress, and complete finished messages."""
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
        """End a sleep when a descriptor becomes readable."""
        self._poll.register(descriptor, select.POLLIN)

    def sleep(self, seconds: float) -> None:
        """Wait for an event, at most for some seconds."""
        if self._worker.arm():
            self._poll.poll(1000 * seconds)

    def fail(self, reason: str) -> None:
        """Fail all messages; their transfers continue until the release."""
        for posted in self._posted:
            posted.message.end(reason)

    def release(self) -> None:
        """Disconnect, and free buffers once UCX has released them."""
        for endpoint in self._endpoints.values():
            endpoint.remove_close_callback()
            endpoint.close_blocking()  # forced, so it does not wait for peers
        while any(not posted.request.completed for posted in self._posted):
            self._worker.progress()
            if not threading.main_thread().is_alive():
                break
            time.sleep(_PAUSE)
        # Requests and endpoints refer to the worker, which ends with the last of them.
        self._posted.clear()
        self._endpoints.clear()
        self._worker = None


def _ucx_tag(sender: int, tag: int) -> Any:
    return libucxx.UCXXTag(sender << TAG_BITS | tag)


def _error_of(request: Any) -> str | None:
    try:
        request.check_error()
    except libucxx.UCXError as error:
        return str(error) or type(error).__name__
    return None
