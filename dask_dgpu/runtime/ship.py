"""Blocks that travel whole, whatever they are: arrays, or what a reduction makes of them.

Nobody knows their sizes beforehand, so each is preceded by a header of fixed size. What fits
into it travels in it, as a rule all there is of a reduction.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.operations.value import Blocks
from dask_dgpu.runtime.placement import Block, Shipment

Array = Any

HEADER = 1024
"""Bytes of a header; the first four are the length of what is pickled in it."""

LENGTH = 4


def ship(
    shipments: Sequence[Shipment], comm: Comm, device: Device, values: Mapping[int, Blocks]
) -> dict[Block, Any]:
    """Send what this rank has for others, and return what it gets, by value and place.

    Every rank calls this with the same shipments. The host waits for the device: it has
    to read headers.
    """
    out = [each for each in shipments if each.source == comm.rank]
    due = [each for each in shipments if each.target == comm.rank]
    if not out and not due:
        return {}
    device.synchronize()
    packed = [_packed(values[each.value][each.index]) for each in out]
    with device.transferring():
        headers = [device.to_device(header) for header, _ in packed]
        came = [device.empty(HEADER, "uint8") for _ in due]
        comm.exchange(
            [(each.target, header) for each, header in zip(out, headers, strict=True)],
            [(each.source, header) for each, header in zip(due, came, strict=True)],
        ).wait()
    device.synchronize()
    found = [_opened(device.to_host(header)) for header in came]
    with device.transferring():
        bodies = [device.to_device(body) for _, body in packed]
        rooms = [device.empty(size, "uint8") for _, size, _ in found]
        comm.exchange(
            [(e.target, body) for e, body in zip(out, bodies, strict=True) if body.size],
            [(e.source, room) for e, room in zip(due, rooms, strict=True) if room.size],
        ).wait()
    device.synchronize()
    return {
        (each.value, each.index): _unpacked(kind, value, room, device)
        for each, (kind, _, value), room in zip(due, found, rooms, strict=True)
    }


def _packed(block: Any) -> tuple[Array, Array]:
    """Return the header of a block and what follows it, both bytes."""
    nothing = np.empty(0, np.uint8)
    plain = hasattr(block, "dtype") and hasattr(block, "ravel") and not block.dtype.hasobject
    if plain and block.nbytes > HEADER // 2 and type(block).__name__ == "ndarray":
        body = block.ravel().view(np.uint8)
        return _header(("array", body.size, (block.shape, block.dtype))), body
    text = pickle.dumps(("object", 0, block))
    if len(text) + LENGTH <= HEADER:
        return _bytes(text), nothing
    whole = np.frombuffer(pickle.dumps(block), np.uint8)
    return _header(("pickle", whole.size, None)), whole


def _header(facts: Any) -> Array:
    return _bytes(pickle.dumps(facts))


def _bytes(text: bytes) -> Array:
    filled = len(text).to_bytes(LENGTH, "little") + text
    return np.frombuffer(filled.ljust(HEADER, b"\0"), np.uint8)


def _opened(header: Array) -> tuple[str, int, Any]:
    length = int.from_bytes(header[:LENGTH].tobytes(), "little")
    facts: tuple[str, int, Any] = pickle.loads(header[LENGTH : LENGTH + length].tobytes())
    return facts


def _unpacked(kind: str, value: Any, room: Array, device: Device) -> Any:
    if kind == "object":
        return value
    if kind == "pickle":
        return pickle.loads(device.to_host(room).tobytes())
    shape, dtype = value
    return room.view(dtype).reshape(shape)
