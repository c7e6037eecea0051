"""Transfers of whole blocks of any kind: arrays, or intermediate values of reductions.

An array whose dtype and shape both ranks know travels as it is, from device to device, and the host
waits for nothing. So do known parts of reductions, as one message of arrays. The receiver of any
other block does not know its size, so this has a header of fixed size: the sizes of its large
arrays, and the pickled block without these. They follow, from device to device. Only what has too
long a header is pickled as a whole, and follows as one array.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.comm.common import contiguous
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.errors import UndeclaredTypeError
from dask_dgpu.kernels.device import Device
from dask_dgpu.kernels.sums.compensated import Pair
from dask_dgpu.kernels.sums.partial import Partial
from dask_dgpu.operations.operation import Blocks, Shipment, conforming, container_of
from dask_dgpu.runtime.placement import Block
from graph_opt.model.layout import CUPY, NUMPY
from graph_opt.model.names import label

Array = Any

HEADER = 1024
"""Bytes of a header."""

SMALL = 256
"""Bytes of an array that is left in the header."""

ALIGNED = 16
"""Bytes to which arrays in a message are aligned."""


class Form(NamedTuple):
    """A block that is one array: that of the graph, or one of NumPy with fields, if it has such."""

    dtype: Any  # its name, or that with fields
    shape: tuple[int, ...]
    container: str = NUMPY

    def packed(self, block: Any, name: str, device: Device) -> Array:
        """Return a block of an array, by its name, as a message; raise if it is not as declared."""
        return self._message(contiguous(conforming(block, name, *self)))

    def awaited(self, device: Device) -> tuple[Any, Array]:
        """Return a block that has still to be received, and the message to receive."""
        block = device.empty(self.shape, self.dtype)
        return block, self._message(block)

    def _message(self, block: Array) -> Array:
        return block if isinstance(self.dtype, str) else block.reshape(-1).view(np.uint8)

    def shaped(self, shape: tuple[int, ...]) -> Form:
        """Return the form of several blocks, combined."""
        return self._replace(shape=shape)


class Parts(NamedTuple):
    """The part of a reduction of one block: arrays with their keys, dtypes and shapes.

    It is a dictionary of these, or the partial sums of a compensated sum if it is ``summed``.
    """

    arrays: tuple[tuple[str, str, tuple[int, ...]], ...]
    container: str
    summed: bool = False

    def packed(self, block: Any, name: str, device: Device) -> Any:
        """Return a block as one array of bytes; raise if it is not as declared."""
        message = device.empty(self.nbytes, "uint8")
        found, views = self._taken(block, name), self._views(message)
        for key, dtype, shape in self.arrays:
            array = found[key]
            if shape:
                array = conforming(array, name, dtype, shape, self.container)
            views[key][...] = array
        return message

    def awaited(self, device: Device) -> tuple[Any, Any]:
        """Return a block that has still to be received, and the bytes to receive."""
        message = device.empty(self.nbytes, "uint8")
        arrays = self._views(message)
        if not self.summed:
            return arrays, message
        *sums, count = arrays.values()
        return Partial(Pair(*sums), count, self.container, 1), message

    def shaped(self, shape: tuple[int, ...]) -> Parts:
        """Return the form of several parts, combined."""
        return self._replace(arrays=tuple((key, dtype, shape) for key, dtype, _ in self.arrays))

    @property
    def nbytes(self) -> int:
        """The bytes of a message with all arrays."""
        return sum(map(_padded, self.arrays))

    def _taken(self, block: Any, name: str) -> Mapping[str, Any]:
        """Return the arrays of a block, or raise."""
        keys, found = [key for key, _, _ in self.arrays], block
        if self.summed and isinstance(block, Partial) and isinstance(block.sums, Pair):
            arrays = *block.sums.arrays(), block.count
            found = dict(zip(keys, arrays, strict=True)) if len(keys) == len(arrays) else None
        if type(found) is not dict or found.keys() != {*keys}:
            wanted, kind = f"a block of {label(name)} with {keys}", type(block).__name__
            raise UndeclaredTypeError(f"expected {wanted}, got a {kind}")
        return found

    def _views(self, message: Any) -> dict[str, Any]:
        """Return the arrays in the memory of a message, by their keys."""
        found, start = {}, 0
        for key, dtype, shape in self.arrays:
            nbytes = math.prod(shape) * np.dtype(dtype).itemsize
            found[key] = message[start : start + nbytes].view(dtype).reshape(shape)
            start += _padded((key, dtype, shape))
        return found


Known = Form | Parts


def _padded(array: tuple[str, str, tuple[int, ...]]) -> int:
    """Return the bytes of an array in a message, where the next one is aligned."""
    _, dtype, shape = array
    return -(-math.prod(shape) * np.dtype(dtype).itemsize // ALIGNED) * ALIGNED


Header = tuple[tuple[int, ...], bytes]
"""The bytes of each array that follows, and the pickled block without them, unless it does."""


@dataclass(frozen=True)
class Shipping:
    """Shipments of one rank: those that it sends, and those that it receives.

    All blocks are ``known``, by value and place, or none is.
    """

    out: tuple[Shipment, ...]
    expected: tuple[Shipment, ...]
    known: Mapping[Block, Known] = field(default_factory=dict)


def ship(
    work: Iterable[Shipping],
    comm: Comm,
    device: Device,
    values: Mapping[int, Blocks],
    names: Sequence[str],
) -> dict[Block, Any]:
    """Send a rank's shipments, and return the received blocks by value and place.

    Errors have the ``names`` of values. Every rank with a part calls this.
    The host waits for the device only if it has to read headers.

    Raises
    ------
    UndeclaredError
        If a block is not what it is declared to be.
    """
    found: dict[Block, Any] = {}
    for shipping in work:
        if shipping.known:
            found |= _ship_arrays(shipping, comm, device, values, names)
        else:
            found |= _ship_any(shipping, comm, device, values)
    return found


def _ship_arrays(
    shipping: Shipping,
    comm: Comm,
    device: Device,
    values: Mapping[int, Blocks],
    names: Sequence[str],
) -> dict[Block, Any]:
    """Send and receive declared arrays, and parts of reductions."""
    known, receives = shipping.known, []
    found: dict[Block, Any] = {}
    out = [((each.value, each.index), each.target) for each in shipping.out]
    with device.computing():
        arrays = {
            (number, index): known[number, index].packed(
                values[number][index], names[number], device
            )
            for number, index in dict.fromkeys(place for place, _ in out)
        }
    device.join()  # the other lane sees them
    with device.transferring():
        for each in shipping.expected:
            place = each.value, each.index
            found[place], message = known[place].awaited(device)
            receives.append((each.source, message))
        _exchange(comm, [(target, arrays[place]) for place, target in out], receives)
    device.join()  # before the sent arrays are freed
    return found


def _ship_any(
    shipping: Shipping, comm: Comm, device: Device, values: Mapping[int, Blocks]
) -> dict[Block, Any]:
    """Send and receive blocks with their headers, for which the host waits."""

    def exchanged(
        sends: Iterable[tuple[int, Array]], receives: Iterable[tuple[int, int]]
    ) -> list[Array]:
        with device.transferring():
            sent = [(rank, device.to_device(array)) for rank, array in sends]
            received = [(rank, device.empty(size, "uint8")) for rank, size in receives]
            _exchange(comm, sent, received)
        device.synchronize()
        return [array for _, array in received]

    device.synchronize()
    packed = [(each.target, *_packed(values[each.value][each.index])) for each in shipping.out]
    sources = [each.source for each in shipping.expected]
    headers = exchanged(
        ((rank, header) for rank, header, _ in packed), ((rank, HEADER) for rank in sources)
    )
    opened: list[Header] = [pickle.loads(device.to_host(each).tobytes()) for each in headers]
    arrays = iter(
        exchanged(
            ((rank, array) for rank, _, arrays in packed for array in arrays),
            ((s, size) for s, (sizes, _) in zip(sources, opened, strict=True) for size in sizes),
        )
    )
    return {
        (each.value, each.index): _unpacked(header, arrays, device)
        for each, header in zip(shipping.expected, opened, strict=True)
    }


def _exchange(
    comm: Comm, sends: Sequence[tuple[int, Array]], receives: Sequence[tuple[int, Array]]
) -> None:
    """Exchange all arrays with elements, if there are any: small blocks are in their headers."""
    sends, receives = ([pair for pair in each if pair[1].size] for each in (sends, receives))
    if sends or receives:
        comm.exchange(sends, receives).wait()


def _packed(block: Any) -> tuple[Array, list[Array]]:
    """Return the header of a block, and what follows it, both as bytes."""
    text, arrays = _Packer.split(block)
    header = pickle.dumps((tuple(array.size for array in arrays), text))
    if len(header) > HEADER:
        arrays = [np.frombuffer(pickle.dumps(block), np.uint8)]
        header = pickle.dumps(((arrays[0].size,), b""))
    return np.frombuffer(header.ljust(HEADER, b"\0"), np.uint8), arrays


def _unpacked(header: Header, arrays: Iterator[Array], device: Device) -> Any:
    """Return a block from its header, and from the next of all received arrays."""
    sizes, text = header
    if not sizes:
        return pickle.loads(text)
    if not text:
        return pickle.loads(device.to_host(next(arrays)).tobytes())
    return _Unpacker(io.BytesIO(text), arrays, device).load()


class _Packer(pickle.Pickler):
    """Writes a block without its large arrays, and notes these in order."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.arrays: list[Array] = []

    @classmethod
    def split(cls, block: Any) -> tuple[bytes, list[Array]]:
        """Return a pickled block, and its large arrays as bytes."""
        text = io.BytesIO()
        packer = cls(text)
        packer.dump(block)
        return text.getvalue(), [array.ravel().view(np.uint8) for array in packer.arrays]

    def persistent_id(self, obj: Any) -> tuple[bool, Any, Any] | None:
        if type(obj).__name__ != "ndarray" or container_of(obj) not in (NUMPY, CUPY):
            return None
        if obj.dtype.hasobject or obj.nbytes <= SMALL:
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
