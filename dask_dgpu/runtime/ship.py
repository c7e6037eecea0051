"""Transfers of whole blocks of any kind: arrays, or intermediate values of reductions.

The receiver does not know their sizes, so each block has a header of fixed size: the pickled block
without its large arrays, and the sizes of these. The arrays follow, from device to device. Only
what has too long a header is pickled as a whole.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.operations.value import Blocks, Shipment, container_of
from dask_dgpu.runtime.plans import Block
from graph_opt.model.layout import CUPY, NUMPY

Array = Any

HEADER = 1024
"""Bytes of a header; the first four are the length of the pickled text after them."""

LENGTH = 4

SMALL = 256
"""Bytes of an array that is left in the header."""


class Header(NamedTuple):
    """The bytes of what follows, and the block without it; none if a pickled block follows."""

    sizes: tuple[int, ...]
    text: bytes | None


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
    sent = [(rank, header) for rank, (header, _) in zip(targets, packed, strict=True)]
    headers = _exchange(comm, device, sent, [(source, HEADER) for source in sources])
    opened = [_opened(device.to_host(header)) for header in headers]
    sent = [
        (rank, array) for rank, (_, arrays) in zip(targets, packed, strict=True) for array in arrays
    ]
    sizes = [
        (rank, size) for rank, header in zip(sources, opened, strict=True) for size in header.sizes
    ]
    arrays = iter(_exchange(comm, device, sent, sizes))
    return {
        (each.value, each.index): _unpacked(header, arrays, device)
        for each, header in zip(expected, opened, strict=True)
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


def _packed(block: Any) -> tuple[Array, list[Array]]:
    """Return the header of a block, and what follows it, both as bytes."""
    text = io.BytesIO()
    packer = _Packer(text)
    packer.dump(block)
    arrays = [array.ravel().view(np.uint8) for array in packer.arrays]
    header = pickle.dumps(Header(tuple(array.size for array in arrays), text.getvalue()))
    if len(header) + LENGTH > HEADER:
        arrays = [np.frombuffer(pickle.dumps(block), np.uint8)]
        header = pickle.dumps(Header((arrays[0].size,), None))
    filled = len(header).to_bytes(LENGTH, "little") + header
    return np.frombuffer(filled.ljust(HEADER, b"\0"), np.uint8), arrays


def _opened(header: Array) -> Header:
    length = int.from_bytes(header[:LENGTH].tobytes(), "little")
    opened: Header = pickle.loads(header[LENGTH : LENGTH + length].tobytes())
    return opened


def _unpacked(header: Header, arrays: Iterator[Array], device: Device) -> Any:
    """Return a block from its header, and from the next of all received arrays."""
    if header.text is None:
        return pickle.loads(device.to_host(next(arrays)).tobytes())
    return _Unpacker(io.BytesIO(header.text), arrays, device).load()


class _Packer(pickle.Pickler):
    """Writes a block without its large arrays, and notes these in order."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.arrays: list[Array] = []

    def persistent_id(self, obj: Any) -> tuple[bool, Any, Any] | None:
        if container_of(obj) not in (NUMPY, CUPY) or obj.dtype.hasobject or obj.nbytes <= SMALL:
            return None
        self.arrays.append(obj)
        return isinstance(obj, np.ndarray), obj.shape, obj.dtype


class _Unpacker(pickle.Unpickler):
    """Reads a block whose arrays have come separately, in the same order."""

    def __init__(self, file: io.BytesIO, arrays: Iterator[Array], device: Device) -> None:
        super().__init__(file)
        self.arrays = arrays
        self.device = device

    def persistent_load(self, pid: Any) -> Array:
        on_host, shape, dtype = pid
        array = next(self.arrays)
        return (self.device.to_host(array) if on_host else array).view(dtype).reshape(shape)
