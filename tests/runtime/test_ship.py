"""Whole blocks travel between ranks: with headers, or without if they are declared."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
from ml_dtypes import bfloat16

from dask_dgpu.comm.local import run_local
from dask_dgpu.errors import UndeclaredShapeError, UndeclaredTypeError
from dask_dgpu.kernels.device import HostDevice
from dask_dgpu.kernels.sums.compensated import Pair
from dask_dgpu.kernels.sums.partial import Partial
from dask_dgpu.operations.operation import Shipment
from dask_dgpu.runtime.prepared import shippings
from dask_dgpu.runtime.ship import HEADER, Form, Shipping, ship
from graph_opt.dask_graph.internals import Task, TaskRef
from graph_opt.dask_graph.returned import returned
from graph_opt.model.layout import NUMPY
from graph_opt.model.recipe import Returned
from tests.support.programs import launch_of, returned_by
from tests.support.recording import RecordingComm

NAMES = ("x", "y")
VALUES = [
    np.arange(3.0),
    np.arange(1000).reshape(10, 100)[:, ::2],
    np.float32(2.5),
    np.array(7, "int16"),
    {"n": np.ones((1, 1)), "total": np.arange(3.0)},
    {"large": np.arange(5000), "larger": [np.ones((3, 90), order="F"), {"same": "text"}]},
    [np.full(40, k) for k in range(90)],
    np.empty((0, 3)),
    np.array([None, "text"], object),
    np.ma.masked_greater(np.arange(600.0), 3),
    (np.ones(300, bool), np.zeros(2, complex)),
    np.arange(2000).astype(bfloat16),
    bfloat16(1.5),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_whatever_it_is_arrives(value: Any) -> None:
    shipments = [Shipment(0, (0,), 1, 0), Shipment(0, (0,), 1, 2), Shipment(1, (), 0, 1)]

    def rank(comm: Any) -> Any:
        mine = {0: {(0,): value} if comm.rank == 1 else {}, 1: {(): 1} if comm.rank == 0 else {}}
        return ship(shippings(shipments, comm.rank), comm, HostDevice(), mine, NAMES)

    first, second, third = run_local(3, rank)
    assert second == {(1, ()): 1}
    for found in (first[0, (0,)], third[0, (0,)]):
        assert type(found) is type(value)
        np.testing.assert_equal(found, value)
        assert getattr(found, "dtype", None) == getattr(value, "dtype", None)


ARRAYS = [
    np.arange(5.0),
    np.arange(1000).reshape(10, 100)[:, ::2],
    np.asfortranarray(np.arange(6.0, dtype="float32").reshape(2, 3)),
    np.array([[True, False]]),
    np.empty((0, 3), complex),
    np.float64(2.5) * np.ones((1, 1)),
]


PARTS = Form(
    "parts", (("n", "int64", (1, 3)), ("M", "float64", (1, 3, 1)), ("total", "float32", (1, 3)))
)
PAIR = (("sums", "float64", (5, 1)), ("compensations", "float64", (5, 1)), ("count", "int64", ()))
SUMMED = Form("sum", PAIR)
DTYPE = np.dtype([("vals", "float32"), ("arg", "int64")])
FIELDS = Form.of_array(DTYPE, (2, 1, 3))


def part_of(seed: int) -> dict[str, Any]:
    """Return the part of a variance."""
    rng = np.random.default_rng(seed)
    arrays = ((key, rng.random(shape) * 100, dtype) for key, dtype, shape in PARTS.arrays)
    return {key: array.astype(dtype) for key, array, dtype in arrays}


def test_parts_of_reductions_arrive_as_one_message() -> None:
    sums = Partial(Pair(np.arange(5.0)[:, None], np.full((5, 1), 1e-17)), 7, NUMPY, 1)
    given = {(0, (0,)): part_of(1), (0, (1,)): part_of(2), (1, (0,)): sums}
    known = {(0, (0,)): PARTS, (0, (1,)): PARTS, (1, (0,)): SUMMED}
    shipments = [Shipment(*place, 0, 1) for place in given]

    def rank(comm: Any) -> Any:
        mine: dict[int, dict[Any, Any]] = {0: {}, 1: {}}
        for (value, index), block in given.items() if comm.rank == 0 else ():
            mine[value][index] = block
        shipping = shippings(shipments, comm.rank, known)
        recorded = RecordingComm(comm)
        return ship(shipping, recorded, HostDevice(), mine, NAMES), recorded.ledger

    (_, ledger), (found, _) = run_local(2, rank)
    assert ledger.calls["exchange"] == 1
    assert ledger.messages_sent == {1: 3}
    assert ledger.bytes_sent == 2 * (24 + 24 + 12) + 40 + 40 + 8
    for place in ((0, (0,)), (0, (1,))):
        assert [*found[place]] == ["n", "M", "total"]
        for key, array in found[place].items():
            np.testing.assert_array_equal(array, given[place][key])
            assert array.dtype == given[place][key].dtype
            assert array.flags.aligned
    partial = found[1, (0,)]
    np.testing.assert_array_equal(partial.sums.sums, sums.sums.sums)
    np.testing.assert_array_equal(partial.sums.compensations, sums.sums.compensations)
    assert (partial.count, partial.container, partial.parts) == (7, NUMPY, 1)


@pytest.mark.parametrize("order", ["C", "F"])
def test_values_with_their_places_arrive_as_one_message(order: Any) -> None:
    block = np.zeros((2, 1, 3), DTYPE, order)
    block["vals"], block["arg"] = np.arange(6).reshape(2, 1, 3) / 3, 7

    def rank(comm: Any) -> Any:
        shipping = shippings([Shipment(0, (), 0, 1)], comm.rank, {(0, ()): FIELDS})
        recorded = RecordingComm(comm)
        mine = {0: {(): block} if comm.rank == 0 else {}}
        return ship(shipping, recorded, HostDevice(), mine, NAMES), recorded.ledger.bytes_sent

    (_, sent), (found, _) = run_local(2, rank)
    assert sent == 6 * 12
    np.testing.assert_array_equal(found[0, ()], block)


@pytest.mark.parametrize(
    ("block", "form", "error"),
    [
        (np.zeros((2, 1, 3), "float32"), FIELDS, UndeclaredTypeError),
        (np.zeros((2, 3), DTYPE), FIELDS, UndeclaredShapeError),
        (np.ma.zeros((2, 1, 3), DTYPE), FIELDS, UndeclaredTypeError),
        ({"vals": np.zeros((2, 1, 3), "f4"), "arg": 1}, FIELDS, UndeclaredTypeError),
        (np.ones((1, 3)), PARTS, UndeclaredTypeError),
        ({"total": np.ones((1, 3), "f4"), "n": np.ones((1, 3), int)}, PARTS, UndeclaredTypeError),
        (part_of(1) | {"M": np.ones((1, 3, 2))}, PARTS, UndeclaredShapeError),
        (part_of(1) | {"n": np.ones((1, 3))}, PARTS, UndeclaredTypeError),
        (part_of(1) | {"total": np.ma.ones((1, 3))}, PARTS, UndeclaredTypeError),
        (part_of(1), SUMMED, UndeclaredTypeError),
        (
            Partial(Pair(*np.ones((4, 5, 1))), 1, NUMPY, 1),
            SUMMED,
            UndeclaredTypeError,
        ),
        (Partial(Pair(*np.ones((2, 5, 1))), 1, NUMPY, 1), PARTS, UndeclaredTypeError),
    ],
)
def test_other_parts_than_declared_are_refused(
    block: Any, form: Form, error: type[Exception]
) -> None:
    shipping = shippings([Shipment(0, (), 0, 1)], 0, {(0, ()): form})
    with pytest.raises(error):
        run_local(1, lambda comm: ship(shipping, comm, HostDevice(), {0: {(): block}}, NAMES))


@pytest.mark.parametrize("value", ARRAYS, ids=lambda value: f"{value.dtype} {value.shape}")
def test_declared_arrays_arrive_without_headers(value: Any) -> None:
    shipments = [Shipment(0, (0,), 1, 0), Shipment(0, (0,), 1, 2), Shipment(1, (0,), 0, 1)]
    form = Form.of_array(value.dtype.name, value.shape)

    def rank(comm: Any) -> tuple[Any, int]:
        mine = {0: {(0,): value} if comm.rank == 1 else {}, 1: {(0,): {"any": "thing"}}}
        shipping = shippings(shipments, comm.rank, {(0, (0,)): form})
        recorded = RecordingComm(comm)
        return ship(shipping, recorded, HostDevice(), mine, NAMES), recorded.ledger.bytes_sent

    (first, header), (second, sent), (third, nothing) = run_local(3, rank)
    assert second == {(1, (0,)): {"any": "thing"}}
    for found in (first[0, (0,)], third[0, (0,)]):
        assert found.flags.c_contiguous
        assert found.dtype == value.dtype
        np.testing.assert_array_equal(found, value)
    assert (header, sent, nothing) == (HEADER, 2 * value.nbytes, 0)


@pytest.mark.parametrize(
    ("block", "error"),
    [
        (np.zeros(3), UndeclaredShapeError),
        (np.zeros(2, complex), UndeclaredTypeError),
        ({"n": 1}, UndeclaredTypeError),
        (np.ma.masked_less(np.zeros(2), 1), UndeclaredTypeError),
    ],
)
def test_what_is_not_as_declared_is_refused(block: Any, error: type[Exception]) -> None:
    shipping = shippings([Shipment(0, (0,), 0, 1)], 0, {(0, (0,)): Form.of_array("float64", (2,))})
    with pytest.raises(error, match="a block of x is declared"):
        run_local(1, lambda comm: ship(shipping, comm, HostDevice(), {0: {(0,): block}}, NAMES))


def test_functions_that_return_arrays() -> None:
    x = da.from_array(np.ones((8, 4)), chunks=(4, 4))
    arrays = {
        "sum": x.sum(axis=0),
        "max": x.max(axis=0),
        "any": (x > 1).any(axis=0),
        "add": x + x.sum(axis=0),
        "getitem": x[:, 1:].sum(axis=0),
        "truediv": x.sum() / x.max(),
    }
    for name, y in arrays.items():
        assert all(each == Returned() for each in returned_by(launch_of(y, 2, fuse=False))), name
    for y in (x.mean(axis=0), x.std(axis=0), x.argmax(axis=0)):
        chunk, *rest = returned_by(launch_of(y, 2, fuse=False))
        assert isinstance(chunk, Returned)
        assert chunk.fields
        assert all(each == Returned() for each in rest)
    task = Task("t", lambda block: {"a": block}, TaskRef("x"))
    assert returned(task, [(0, (0,))], {0: ("float64", 1)}) is None


def test_ranks_without_shipments_have_no_part() -> None:
    shipments = [Shipment(0, (0,), 1, 0)]
    assert [shippings(shipments, rank) for rank in range(3)] == [
        (Shipping((), (((0, (0,)), 1),), {}),),
        (Shipping((((0, (0,)), 0),), (), {}),),
        (),
    ]
    assert HEADER >= 512
