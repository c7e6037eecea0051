"""Transfers of whole blocks of any kind: arrays, or intermediate values of reductions.

The receiver does not know their sizes, so each block has a header of fixed size. A small block,
such as an intermediate value of a reduction, travels within its header.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.operations.value import Blocks, Shipment
from dask_dgpu.runtime.plans import Block

Array = Any

HEADER = 1024
"""Bytes of a header; the first four are the length of the pickled text after them."""

LENGTH = 4


def ship(
    shipments: Sequence[Shipment], comm: Comm, device: Device, values: Mapping[int, Blocks]
) -> dict[Block, Any]:
    """Send this rank's shipments, and return the received blocks by value and place.

    Every rank calls this with the same shipments. The host waits for the device, because it has
    to read the headers.
    """
    out = [each for each in shipments if each.source == comm.rank]
    expected = [each for each in shipments if each.target == comm.rank]
    if not out and not expected:
        return {}
    targets, sources = [each.target for each in out], [each.source for each in expected]
    device.synchronize()
    packed = [_packed(values[each.value][each.index]) for each in out]
    sent = list(zip(targets, (header for header, _ in packed), strict=True))
    headers = _exchange(comm, device, sent, [(source, HEADER) for source in sources])
    opened = [_opened(device.to_host(header)) for header in headers]
    sent = list(zip(targets, (body for _, body in packed), strict=True))
    sizes = [size for _, size, _ in opened]
    bodies = _exchange(comm, device, sent, list(zip(sources, sizes, strict=True)))
    return {
        (each.value, each.index): _unpacked(kind, value, body, device)
        for each, (kind, _, value), body in zip(expected, opened, bodies, strict=True)
    }


def _exchange(
    comm: Comm, device: Device, sends: list[tuple[int, Array]], recvs: list[tuple[int, int]]
) -> list[Array]:
    """Send arrays to ranks; return the arrays, of given sizes, that ranks send to this one."""
    with device.transferring():
        sent = [(rank, device.to_device(array)) for rank, array in sends]
        received = [(rank, device.empty(size, "uint8")) for rank, size in recvs]
        comm.exchange(
            [(rank, array) for rank, array in sent if array.size],
            [(rank, array) for rank, array in received if array.size],
        ).wait()
    device.synchronize()
    return [array for _, array in received]


def _packed(block: Any) -> tuple[Array, Array]:
    """Return the header of a block and its body, both as bytes."""
    nothing = np.empty(0, np.uint8)
    plain = hasattr(block, "dtype") and hasattr(block, "ravel") and not block.dtype.hasobject
    if plain and block.nbytes > HEADER // 2 and type(block).__name__ == "ndarray":
        body = block.ravel().view(np.uint8)
        return _header(("array", body.size, (block.shape, block.dtype))), body
    text = pickle.dumps(("object", 0, block))
    if len(text) + LENGTH <= HEADER:
        return _with_length(text), nothing
    whole = np.frombuffer(pickle.dumps(block), np.uint8)
    return _header(("pickle", whole.size, None)), whole


def _header(facts: Any) -> Array:
    return _with_length(pickle.dumps(facts))


def _with_length(text: bytes) -> Array:
    filled = len(text).to_bytes(LENGTH, "little") + text
    return np.frombuffer(filled.ljust(HEADER, b"\0"), np.uint8)


def _opened(header: Array) -> tuple[str, int, Any]:
    length = int.from_bytes(header[:LENGTH].tobytes(), "little")
    facts: tuple[str, int, Any] = pickle.loads(header[LENGTH : LENGTH + length].tobytes())
    return facts


def _unpacked(kind: str, value: Any, body: Array, device: Device) -> Any:
    if kind == "object":
        return value
    if kind == "pickle":
        return pickle.loads(device.to_host(body).tobytes())
    shape, dtype = value
    return body.view(dtype).reshape(shape)
