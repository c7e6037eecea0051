"""Sources and arguments of launches, for one block and for many; without a GPU."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.kernels.fused.kernel import MOST_BLOCKS, Launch, Packing
from tests.kernels.fused.test_plan import first, gelu, softmax
from tests.kernels.fused.tracing import Function
from tests.support.profiles import examples

TYPES: dict[str, Any] = {
    "?": ctypes.c_bool,
    "i1": ctypes.c_int8,
    "u2": ctypes.c_uint16,
    "i4": ctypes.c_int32,
    "f4": ctypes.c_float,
    "i8": ctypes.c_int64,
    "f8": ctypes.c_double,
}
TALL = np.broadcast_to(np.float32(0), (100_000, 8)).copy()


@examples(50)
@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.sampled_from([*TYPES]), st.integers(0, 100)), max_size=8),
)
def test_arguments_lie_as_in_c(addresses: int, numbers: list[tuple[str, int]]) -> None:
    names = [f"number{at}" for at in range(len(numbers))]
    fields = [(name, TYPES[kind]) for name, (kind, _) in zip(names, numbers, strict=True)]
    pointers = ctypes.c_uint64 * addresses
    kind = type("Given", (ctypes.Structure,), {"_fields_": [("at", pointers), *fields]})
    values = [np.dtype(kind).type(value) for kind, value in numbers]
    packing = Packing.of(addresses, values)
    buffer = ctypes.create_string_buffer(max(packing.packer.size, ctypes.sizeof(kind)))
    packing.write(buffer, range(7, 7 + addresses))
    found = kind.from_buffer(buffer)
    assert list(found.at) == [*range(7, 7 + addresses)]
    assert [getattr(found, name) for name in names] == values
    assert packing.packer.size <= ctypes.sizeof(kind)


def test_complex_numbers_lie_at_multiples_of_their_size() -> None:
    for addresses in (1, 2):
        packing = Packing.of(addresses, [np.int32(1), np.complex128(2 + 3j)])
        assert packing.packer.size % 16 == 0
        assert packing.numbers[-16:] == np.complex128(2 + 3j).tobytes()


@pytest.mark.parametrize("arrays", [1, 2, 14, 15, 30, 200, 448])
def test_the_table_fits(arrays: int) -> None:
    most = Launch("", (), tuple(range(arrays)), ()).most
    assert 1 <= most <= MOST_BLOCKS
    assert most * arrays * 8 <= 3584 < 4096
    assert most == MOST_BLOCKS or (most + 1) * arrays * 8 > 3584


@pytest.mark.parametrize(
    ("function", "block", "names"),
    [
        (gelu, TALL, ["fused"]),
        (softmax, TALL, ["on_chip"]),
        (lambda xp, x: (x.sum(0), x.max(0)), TALL, ["columns", "fold"]),
        (lambda xp, x: x.sum(1), TALL, ["rows"]),
        (lambda xp, x: x.std((0, 1)), TALL, ["rows", "fold"]),
    ],
)
def test_kernels_for_many_blocks_call_those_for_one(
    function: Function, block: Any, names: list[str]
) -> None:
    launch = first(function, block)
    assert launch.one.count("__global__") == 1  # the definition of KERNEL
    assert launch.many.count("__global__") == len(names)
    assert [entry.name for entry in launch.entries] == names
    for entry in launch.entries:
        arrays = launch.arrays - (len(launch.operands) if entry.name == "fold" else 0)
        assert f"{entry.name}_many(const __grid_constant__ Table<{arrays}>" in launch.many
        assert f"KERNEL({entry.bounds})\n{entry.name}(" in launch.one


def test_short_reductions_are_one_launch() -> None:
    for axes in ((0,), (1,), (0, 1)):
        launch = first(lambda xp, x: x.mean(axes), np.zeros((128, 128), "f4"))  # noqa: B023
        assert len(launch.entries) == 1
        long = first(lambda xp, x: x.mean(axes), np.zeros((1 << 16, 1 << 3), "f4"))  # noqa: B023
        assert len(long.entries) == 1 + (axes != (1,))
