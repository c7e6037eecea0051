"""Streams for a transport that knows none."""

from __future__ import annotations

import cupy

from dask_dgpu.comm.point_to_point import Steps
from dask_dgpu.comm.protocol import Work


class Place:
    """A device and its stream in the thread that makes this, for a collective's steps."""

    def __init__(self, device: int) -> None:
        self._device = cupy.cuda.Device(device)
        with self._device:
            self._stream = cupy.cuda.get_current_stream()
            self._last = cupy.cuda.Event(disable_timing=True)

    def run(self, steps: Steps) -> Steps:
        """Take the steps here, whichever thread resumes them."""
        while True:
            with self._device, self._stream:
                messages = next(steps, None)
                if messages is None:
                    self._last.record()
                    return
            yield messages

    def order(self) -> None:
        """Put the caller's stream behind the last step; at once if it was not taken."""
        with self._device:
            cupy.cuda.get_current_stream().wait_event(self._last)


class OrderedWork:
    """A collective whose results the waiter's stream waits for."""

    def __init__(self, work: Work, place: Place) -> None:
        self._work = work
        self._place = place

    def wait(self) -> None:
        """Return when all messages are over; copies and reductions are on the stream."""
        self._work.wait()
        self._place.order()

    def done(self) -> bool:
        """Whether ``wait`` would return (or raise) without blocking."""
        return self._work.done()
