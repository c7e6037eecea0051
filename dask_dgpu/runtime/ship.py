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
from dataclasses import dataclass
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np

from dask_dgpu.comm.common import contiguous
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.errors import UndeclaredTypeError
from dask_dgpu.kernels.device import Device
from dask_dgpu.kernels.sums.compensated import Pair
from dask_dgpu.kernels.sums.partial import Partial
from dask_dgpu.operations.operation import Blocks, conforming, container_of
from graph_opt.model.layout import CONTAINERS, NUMPY
from graph_opt.model.names import label
from graph_opt.model.recipe import Block

Array = Any

HEADER = 1024
"""Bytes of a header."""

SMALL = 256
"""Bytes of an array that is left in the header."""


class Form(NamedTuple):
    """What a known block is: arrays with their keys, dtypes and shapes, which are one message.

    It is one array, a dictionary of the parts of a reduction, or the partial sums of a compensated
    sum, of which the last array is the count. Arrays with larger elements come first, so all are
    aligned.
    """

    kind: Literal["array", "parts", "sum"]
    arrays: tuple[tuple[str, Any, tuple[int, ...]], ...]
    container: str = NUMPY

    @classmethod
    def of_array(cls, dtype: Any, shape: tuple[int, ...], container: str = NUMPY) -> Form:
        """Return the form of an array, with the name of its dtype, or one of NumPy with fields."""
        return cls("array", (("", dtype, shape),), container)

    def packed(self, block: Any, name: str, device: Device) -> Array:
        """Return a block of an array, by its name, as a message; raise if it is not as declared."""
        taken = zip(self.arrays, self._taken(block, name), strict=True)
        arrays = [
            array if key == "count" else conforming(array, name, dtype, shape, self.container)
            for (key, dtype, shape), array in taken
        ]
        if self.kind == "array":
            return _message(contiguous(arrays[0]))
        message, views = self._empty(device)
        for view, array in zip(views, arrays, strict=True):
            np.copyto(view, array)  # CuPy copies memory by it, and compiles a kernel for view[...]
        return message

    def awaited(self, device: Device) -> tuple[Any, Array]:
        """Return a block that has still to be received, and the message to receive."""
        message, arrays = self._empty(device)
        if self.kind == "array":
            return arrays[0], message
        if self.kind == "parts":
            return dict(zip([key for key, _, _ in self.arrays], arrays, strict=True)), message
        *sums, count = arrays
        return Partial(Pair(*sums), count, self.container, 1), message

    def _taken(self, block: Any, name: str) -> Sequence[Any]:
        """Return the arrays of a block, or raise."""
        keys, found = [key for key, _, _ in self.arrays], list[Any]()
        if self.kind == "array":
            found = [block]
        elif self.kind == "parts" and type(block) is dict and block.keys() == {*keys}:
            found = [block[key] for key in keys]
        elif self.kind == "sum" and isinstance(block, Partial) and isinstance(block.sums, Pair):
            found = [*block.sums.arrays(), block.count]
        if len(found) != len(keys):
            wanted, kind = f"a block of {label(name)} with {keys}", type(block).__name__
            raise UndeclaredTypeError(f"expected {wanted}, got a {kind}")
        return found

    def _empty(self, device: Device) -> tuple[Array, list[Array]]:
        """Return a message and the arrays in its memory."""
        if self.kind == "array":
            ((_, dtype, shape),) = self.arrays
            block = device.empty(shape, dtype)
            return _message(block), [block]
        sizes = (math.prod(shape) * np.dtype(dtype).itemsize for _, dtype, shape in self.arrays)
        ends = [*accumulate(sizes, initial=0)]
        message = device.empty(ends[-1], "uint8")
        parts = zip(pairwise(ends), self.arrays, strict=True)
        return message, [message[slice(*at)].view(x).reshape(shape) for at, (_, x, shape) in parts]


NOTHING: Mapping[Block, Form] = MappingProxyType({})


def _message(block: Array) -> Array:
    """Return an array as a message: transports know no fields."""
    return block if block.dtype.names is None else block.reshape(-1).view(np.uint8)


@dataclass(frozen=True)
class Shipping:
    """Blocks of one rank with targets, to which it sends them, and those that it receives.

    All blocks are ``known``, or none is.
    """

    out: tuple[tuple[Block, int], ...]
    expected: tuple[tuple[Block, int], ...]
    known: Mapping[Block, Form]


def ship(
    work: Iterable[Shipping],
    comm: Comm,
    device: Device,
    values: Mapping[int, Blocks],
    names: Sequence[str],
) -> dict[Block, Any]:
    """Send a rank's blocks, and return the received ones by value and place.

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
            found |= _ship_known(shipping, comm, device, values, names)
        else:
            found |= _ship_any(shipping, comm, device, values)
    return found


def _ship_known(
    shipping: Shipping,
    comm: Comm,
    device: Device,
    values: Mapping[int, Blocks],
    names: Sequence[str],
) -> dict[Block, Any]:
    """Send and receive declared arrays, and parts of reductions."""
    known, receives = shipping.known, []
    found: dict[Block, Any] = {}
    with device.computing():
        messages = {
            (number, index): known[number, index].packed(
                values[number][index], names[number], device
            )
            for number, index in dict(shipping.out)
        }
    device.join()  # the other lane sees them
    with device.transferring():
        for block, source in shipping.expected:
            found[block], message = known[block].awaited(device)
            receives.append((source, message))
        _exchange(comm, [(target, messages[block]) for block, target in shipping.out], receives)
    device.join()  # before the messages are freed
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
    packed = [(target, *_packed(values[n][index])) for (n, index), target in shipping.out]
    headers = exchanged(
        ((target, header) for target, header, _ in packed),
        ((source, HEADER) for _, source in shipping.expected),
    )
    opened = [pickle.loads(device.to_host(header).tobytes()) for header in headers]
    sources = [source for _, source in shipping.expected]
    arrays = exchanged(
        ((target, array) for target, _, arrays in packed for array in arrays),
        ((at, size) for at, (sizes, _) in zip(sources, opened, strict=True) for size in sizes),
    )
    rest = iter(arrays)
    blocks = [_Unpacker(text, rest, device).load() for _, text in opened]
    return dict(zip((block for block, _ in shipping.expected), blocks, strict=True))


def _exchange(
    comm: Comm, sends: Sequence[tuple[int, Array]], receives: Sequence[tuple[int, Array]]
) -> None:
    """Exchange all arrays with elements, if there are any: small blocks are in their headers."""
    sends, receives = ([pair for pair in each if pair[1].size] for each in (sends, receives))
    if sends or receives:
        comm.exchange(sends, receives).wait()


def _packed(block: Any) -> tuple[Array, list[Array]]:
    """Return the header of a block, and the arrays that follow it, both as bytes.

    The header has their sizes, and the pickled block without them, unless this is too long.
    """
    packer = _Packer(block)
    text, arrays = packer.file.getvalue(), packer.arrays
    header = pickle.dumps(([array.size for array in arrays], text))
    if len(header) > HEADER:
        arrays = [np.frombuffer(pickle.dumps(block), np.uint8)]
        header = pickle.dumps(([arrays[0].size], b""))
    return np.frombuffer(header.ljust(HEADER, b"\0"), np.uint8), arrays


class _Packer(pickle.Pickler):
    """Writes a block without its large arrays, and keeps these in order, as bytes."""

    def __init__(self, block: Any) -> None:
        self.file, self.arrays = io.BytesIO(), list[Array]()
        super().__init__(self.file)
        self.dump(block)

    def persistent_id(self, obj: Any) -> tuple[bool, Any, Any] | None:
        if container_of(obj) not in CONTAINERS or obj.dtype.hasobject or obj.nbytes <= SMALL:
            return None
        self.arrays.append(obj.ravel().view(np.uint8))
        return isinstance(obj, np.ndarray), obj.shape, obj.dtype


class _Unpacker(pickle.Unpickler):
    """Reads a block whose arrays have come separately, in the same order, or as a whole."""

    def __init__(self, text: bytes, arrays: Iterator[Array], device: Device) -> None:
        super().__init__(io.BytesIO(text or device.to_host(next(arrays)).tobytes()))
        self.arrays, self.device = arrays, device

    def persistent_load(self, pid: Any) -> Array:
        on_host, shape, dtype = pid
        array = next(self.arrays)
        return (self.device.to_host(array) if on_host else array).view(dtype).reshape(shape)
