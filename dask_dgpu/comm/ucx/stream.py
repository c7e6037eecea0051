"""CUDA streams for a transport that has none."""

from __future__ import annotations

import cupy

from dask_dgpu.comm.point_to_point import Steps
from dask_dgpu.comm.protocol import Work


class Place:
    """The current device and stream of the creating thread, for a collective's steps."""

    def __init__(self, device: int) -> None:
        self._device = cupy.cuda.Device(device)
        with self._device:
            self._stream = cupy.cuda.get_current_stream()
            self._last = cupy.cuda.Event(disable_timing=True)

    def run(self, steps: Steps) -> Steps:
        """Run the steps on this stream, whichever thread resumes them."""
        while True:
            with self._device, self._stream:
                messages = next(steps, None)
                if messages is None:
                    self._last.record()
                    return
            yield messages

    def order(self) -> None:
        """Make the caller's stream wait for the last step, if that has run."""
        with self._device:
            cupy.cuda.get_current_stream().wait_event(self._last)


class OrderedWork:
    """A collective whose ``wait`` makes the caller's stream wait for the results."""

    def __init__(self, work: Work, place: Place) -> None:
        self._work = work
        self._place = place

    def wait(self) -> None:
        """Return when all messages are done; copies and reductions are on the stream."""
        self._work.wait()
        self._place.order()

    def done(self) -> bool:
        """Return whether ``wait`` would return (or raise) without blocking."""
        return self._work.done()
