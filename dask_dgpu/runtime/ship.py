"""Transfers of whole blocks of any kind: arrays, or intermediate values of reductions.

An array whose dtype and shape both ranks know travels as it is, from device to device, and the host
waits for nothing. So do known parts of reductions, as one message of arrays. The receiver of any
other block does not know its size, so this has a header of fixed size. An array follows it, from
device to device; anything else is pickled, in the header if it fits there.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterable, Mapping, Sequence
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
        keys, arrays = [key for key, _, _ in self.arrays], list[Any]()
        if self.kind == "array":
            arrays = [block]
        elif self.kind == "parts" and type(block) is dict and block.keys() == {*keys}:
            arrays = [block[key] for key in keys]
        elif self.kind == "sum" and isinstance(block, Partial) and isinstance(block.sums, Pair):
            arrays = [*block.sums.arrays(), block.count]
        if len(arrays) != len(keys):
            wanted, kind = f"a block of {label(name)} with {keys}", type(block).__name__
            raise UndeclaredTypeError(f"expected {wanted}, got a {kind}")
        return arrays

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
    blocks: dict[Block, Any] = {}
    for shipping in work:
        if shipping.known:
            blocks |= _ship_known(shipping, comm, device, values, names)
        else:
            blocks |= _ship_any(shipping, comm, device, values)
    return blocks


def _ship_known(
    shipping: Shipping,
    comm: Comm,
    device: Device,
    values: Mapping[int, Blocks],
    names: Sequence[str],
) -> dict[Block, Any]:
    """Send and receive declared arrays, and parts of reductions."""
    known, receives = shipping.known, []
    blocks: dict[Block, Any] = {}
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
            blocks[block], message = known[block].awaited(device)
            receives.append((source, message))
        _exchange(comm, [(target, messages[block]) for block, target in shipping.out], receives)
    device.join()  # before the messages are freed
    return blocks


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
    arrays = exchanged(
        ((target, array) for target, _, array in packed),
        ((source, size) for (_, source), (size, *_) in zip(shipping.expected, opened, strict=True)),
    )
    blocks = {}
    for (block, _), (_, form, text), array in zip(shipping.expected, opened, arrays, strict=True):
        if form is None:
            blocks[block] = pickle.loads(text or device.to_host(array).tobytes())
        else:
            on_host, shape, dtype = form
            array = device.to_host(array) if on_host else array
            blocks[block] = array.view(dtype).reshape(shape)
    return blocks


def _exchange(
    comm: Comm, sends: Sequence[tuple[int, Array]], receives: Sequence[tuple[int, Array]]
) -> None:
    """Exchange all arrays with elements, if there are any: small blocks are in their headers."""
    sends, receives = ([pair for pair in each if pair[1].size] for each in (sends, receives))
    if sends or receives:
        comm.exchange(sends, receives).wait()


def _packed(block: Any) -> tuple[Array, Array]:
    """Return the header of a block, and what follows it, both as bytes.

    The header has the size of the latter, and the form of an array or a short pickle.
    """
    form, text, array = None, b"", np.empty(0, np.uint8)
    if container_of(block) in CONTAINERS and not block.dtype.hasobject and block.nbytes > SMALL:
        form = isinstance(block, np.ndarray), block.shape, block.dtype
        array = contiguous(block).reshape(-1).view(np.uint8)
    else:
        text = pickle.dumps(block)
    header = pickle.dumps((array.size, form, text))
    if len(header) > HEADER:
        array = np.frombuffer(text or pickle.dumps(block), np.uint8)
        header = pickle.dumps((array.size, None, b""))
    return np.frombuffer(header.ljust(HEADER, b"\0"), np.uint8), array
