"""What workers do with windows of a client; the client calls these functions on them."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_dgpu.batches.windows import ring
from dask_dgpu.batches.windows.ring import Place, Ring, StoppedError

if TYPE_CHECKING:
    from distributed import Worker

EXTENSION = "dgpu-windows"

Key = Any
Kind = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and dtype of a block."""


class Windows(dict[Place, Ring]):
    """The windows that a worker has mapped."""

    def let_go(self, place: Place) -> None:
        """Let go of a window, if it is open; what goes through it ends, and then it is unpinned."""
        if (found := self.pop(place, None)) is not None:
            found.stop()

    def close(self) -> None:
        """Let go of all windows; Dask calls this when the worker closes."""
        for place in list(self):
            self.let_go(place)


def _windows(worker: Worker) -> Windows:
    found: Windows = worker.extensions.setdefault(EXTENSION, Windows())
    return found


async def _use(worker: Worker, place: Place, function: Callable[[Ring], Any]) -> Any:
    """Call a function of a window in a thread."""
    found = _windows(worker).get(place)
    if found is None:  # the worker has started again
        raise StoppedError("a worker has let go of a window")
    return await asyncio.get_running_loop().run_in_executor(None, function, found)


def _pin(found: Ring) -> None:
    """Pin the slots while the ring is in use, if possible: otherwise copies are only slower."""
    from cupy.cuda import runtime

    slots = found.slots
    with suppress(runtime.CUDARuntimeError):
        runtime.hostRegister(slots.ctypes.data, slots.nbytes, 0)
        unpin = weakref.finalize(found, runtime.hostUnregister, slots.ctypes.data)
        unpin.atexit = False  # the process and its pinned memory end together


async def opened(place: Place, on_gpu: bool, *, dask_worker: Worker) -> bool:
    """Map a window; return whether it is on this host. Let go of windows whose client is dead."""
    windows = _windows(dask_worker)
    for each in [each for each in windows if not each.is_there]:
        windows.let_go(each)
    try:
        windows[place] = ring.opened(place)
    except OSError:
        return False
    if on_gpu:
        _pin(windows[place])
    return True


async def closed(place: Place, *, dask_worker: Worker) -> None:
    """Let go of a window."""
    _windows(dask_worker).let_go(place)


async def taken(
    place: Place, blocks: Sequence[tuple[Key, Kind]], on_gpu: bool, *, dask_worker: Worker
) -> dict[Key, int]:
    """Make blocks that the client sends data of the worker; return their bytes."""

    def take(found: Ring) -> dict[Key, Any]:
        stream: Any = None
        if on_gpu:
            import cupy

            # not on a stream that ends with this call: blocks may outlive it
            arrived = {key: cupy.empty(*kind) for key, kind in blocks}
            stream = cupy.cuda.Stream(non_blocking=True)
            stream.wait_event(cupy.cuda.get_current_stream().record())
        else:
            arrived = {key: np.empty(*kind) for key, kind in blocks}
        found.move(list(arrived.values()), sends=False, stream=stream)
        return arrived

    arrived = await _use(dask_worker, place, take)
    nbytes: dict[Key, int] = dask_worker.update_data(arrived)["nbytes"]
    return nbytes


async def kind_of(key: Key, *, dask_worker: Worker) -> Kind | None:
    """Return what a block is; None if it is no array, or not here."""
    block: Any = dask_worker.data.get(key)
    is_array = isinstance(block, np.ndarray) or hasattr(block, "__cuda_array_interface__")
    return (block.shape, block.dtype) if is_array and not block.dtype.hasobject else None


async def given(place: Place, key: Key, *, dask_worker: Worker) -> None:
    """Send a block to the client, after what CuPy's current stream does with it."""
    block = dask_worker.data[key]
    await _use(dask_worker, place, partial(Ring.move, arrays=[block], sends=True))
