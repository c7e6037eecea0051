"""An ``out`` that functions hold is refused as far as their code names what holds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import dask
import dask.array as da
import h5py
import numpy as np
import pytest

import dask_dgpu as dgpu
from dask_dgpu.batches import captured
from dask_dgpu.batches.captured import arrays_in

VALUES = np.random.default_rng(0).random((40, 30))


class Table:
    """A function with an array."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def __call__(self, block: Any) -> Any:
        return block + self.table[0, 0]


@pytest.mark.parametrize(
    "graph",
    [
        lambda x, t: x.map_blocks(lambda b, table: b + table[0, 0], table=t),
        lambda x, t: x.map_blocks(lambda b: b + t[0, 0]),
        lambda x, t: x.map_blocks(lambda b, table=t: b + table[0, 0]),
        lambda x, t: x.map_blocks(partial(lambda table, b: b + table[0, 0], t)),
        lambda x, t: x.map_blocks(Table(t)),
        lambda x, t: x.map_blocks(Table(t).__call__).rechunk(7) + 1,
        lambda x, t: x + da.from_delayed(dask.delayed(np.copy)([t[:1]]), (1, 1, 30), "f8")[0],
    ],
    ids=["keyword", "closure", "default", "bound", "object", "method", "list"],
)
def test_arrays_that_functions_hold(graph: Callable[[Any, Any], Any]) -> None:
    out = VALUES.copy()
    x = graph(da.ones(VALUES.shape, chunks=(9, 30)), out)
    with pytest.raises(ValueError, match=r"out not to share memory with arrays\[0\]"):
        dgpu.run("exp", x, out=out)
    dgpu.run("exp", x, out=np.empty_like(out))


def test_arrays_that_op_holds() -> None:
    out = VALUES.copy()
    with pytest.raises(ValueError, match="out not to share memory with op"):
        dgpu.run(lambda x: x + out.sum(), VALUES, out=out)
    with pytest.raises(ValueError, match=r"out\[0\] not to share memory with op"):
        dgpu.run_many(partial(np.add, out), [(VALUES,)], out=[out])


GLOBAL = VALUES.copy()


def with_global(block: Any) -> Any:
    return block + GLOBAL[0, 0]


class Methods:
    """Functions of an object with two arrays."""

    def __init__(self, one: Any, other: Any) -> None:
        self.one = one
        self.other = other

    def reads_one(self, x: Any) -> Any:
        return x.map_blocks(lambda block: block + self.one[0, 0])

    def reads_other(self, x: Any) -> Any:
        return x.map_blocks(lambda block: block + self.other[0, 0])


@pytest.mark.parametrize(
    "op",
    [
        lambda x: x.map_blocks(lambda block: block + GLOBAL[0, 0]),
        lambda x: x.map_blocks(with_global),
        Methods(GLOBAL, VALUES).reads_one,
    ],
    ids=["global of an inner function", "global of a function that is named", "method"],
)
def test_arrays_that_code_names(op: Any) -> None:
    with pytest.raises(ValueError, match="out not to share memory with op"):
        dgpu.run(op, VALUES, out=GLOBAL)
    dgpu.run(op, VALUES, out=np.empty_like(VALUES))


@pytest.mark.parametrize("pack", [lambda t: SimpleNamespace(table=t), lambda t: [Table(t)]])
def test_objects_that_op_gets(pack: Callable[[Any], Any]) -> None:
    def add(x: Any, state: Any) -> Any:
        return x + (state[0] if isinstance(state, list) else state).table

    out, other = VALUES.copy(), np.empty_like(VALUES)
    state = pack(out)
    with pytest.raises(ValueError, match="out not to share memory with state"):
        dgpu.run(add, VALUES, state=state, out=out)
    with pytest.raises(ValueError, match=r"out not to share memory with arrays\[1\]"):
        dgpu.run(add, VALUES, state, out=out)
    with pytest.raises(ValueError, match=r"out\[0\] not to share memory with state"):
        dgpu.run_many(add, [(VALUES,), (VALUES,)], state=state, out=[out, other])
    np.testing.assert_array_equal(dgpu.run(add, VALUES, state=state, out=other), VALUES + out)


def test_arrays_that_a_method_does_not_name() -> None:
    out = np.empty_like(VALUES)
    dgpu.run(Methods(out, VALUES).reads_other, VALUES, out=out)
    np.testing.assert_allclose(out, VALUES + VALUES[0, 0], rtol=1e-14)


@dataclass
class State:
    """An object with two arrays."""

    buffer: Any
    unused: Any = None


@dataclass(slots=True)
class Slots:
    """A function with arrays in slots."""

    buffer: Any
    unused: Any = None

    def __call__(self, x: Any) -> Any:
        return self.added(x)

    def added(self, x: Any) -> Any:
        return x + self.buffer[0, 0]


class Helpers:
    """Functions of a class, and an array."""

    table = GLOBAL

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __call__(self, x: Any) -> Any:
        return x + self.first

    @cached_property
    def lazy(self) -> Any:
        return self.inner[0, 0]

    @property
    def first(self) -> Any:
        return self.inner[0, 0]

    @staticmethod
    def of_global(x: Any) -> Any:
        return x.map_blocks(with_global)

    @classmethod
    def of_class(cls, x: Any) -> Any:
        return x + cls.table[0, 0]


class Proxy:
    """An object that has the attributes of another one."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def module(**values: Any) -> Any:
    """Return a module with these values."""
    found = ModuleType("found")
    vars(found).update(values)
    return found


MODULE = module(out=GLOBAL, work=with_global, state=State(GLOBAL))
STATE, SLOTS, NAMESPACE = State(GLOBAL), Slots(GLOBAL), SimpleNamespace(buffer=GLOBAL)
IN_DICT, NESTED = {"buffer": GLOBAL}, SimpleNamespace(inner=[State(GLOBAL)])
PROXY, HELPERS = Proxy(STATE), Helpers(GLOBAL)


def with_attribute(x: Any) -> Any:
    return x + with_attribute.buffer[0, 0]  # type: ignore[attr-defined]


vars(with_attribute)["buffer"] = GLOBAL


def closing(state: Any) -> Callable[[Any], Any]:
    return lambda x: x.map_blocks(lambda block: block + state.buffer[0, 0])


@pytest.mark.parametrize(
    "op",
    [
        pytest.param(lambda x: x + MODULE.out[0, 0], id="module"),
        pytest.param(lambda x: MODULE.work(x), id="function of a module"),
        pytest.param(lambda x: x + MODULE.state.buffer[0, 0], id="object of a module"),
        pytest.param(SLOTS, id="slots of a callable object"),
        pytest.param(SLOTS.added, id="slots of a method's object"),
        pytest.param(lambda x: SLOTS(x), id="callable global"),
        pytest.param(lambda x: x + SLOTS.buffer[0, 0], id="slots of a global"),
        pytest.param(lambda x: x + STATE.buffer[0, 0], id="dataclass"),
        pytest.param(lambda x: x + NAMESPACE.buffer[0, 0], id="namespace"),
        pytest.param(lambda x: x + IN_DICT["buffer"][0, 0], id="dict"),
        pytest.param(lambda x: x + NESTED.inner[0].buffer[0, 0], id="object in an object"),
        pytest.param(lambda x: x + PROXY.buffer[0, 0], id="proxy"),
        pytest.param(closing(STATE), id="closure"),
        pytest.param(closing(SLOTS), id="slots in a closure"),
        pytest.param(HELPERS, id="property"),
        pytest.param(lambda x: x + HELPERS.lazy, id="cached property"),
        pytest.param(Helpers.of_global, id="static method"),
        pytest.param(HELPERS.of_class, id="class method"),
        pytest.param(lambda x: x + Helpers.table[0, 0], id="class"),
        pytest.param(with_attribute, id="function's attribute"),
        pytest.param(partial(lambda state, x: x + state.buffer[0, 0], STATE), id="bound argument"),
        pytest.param(
            lambda x, s=STATE: x.map_blocks(lambda b, s: b + s.buffer[0, 0], s=s), id="argument"
        ),
    ],
)
def test_attributes_that_code_names(op: Any) -> None:
    with pytest.raises(ValueError, match="out not to share memory with op"):
        dgpu.run(op, VALUES, out=GLOBAL)
    dgpu.run(op, VALUES, out=np.empty_like(VALUES))


def test_an_object_that_a_task_gets() -> None:
    out = VALUES.copy()
    for state in (State(out), Slots(out), module(buffer=out)):
        x = da.ones(VALUES.shape, chunks=9).map_blocks(lambda b, s: b + s.buffer[0, 0], s=state)
        with pytest.raises(ValueError, match=r"out not to share memory with arrays\[0\]"):
            dgpu.run("exp", x, out=out)


class Unused:
    """A function with an attribute that it does not name."""

    def __init__(self, unused: Any) -> None:
        self.unused = unused

    def __call__(self, x: Any) -> Any:
        return x + 1

    def reads(self, x: Any) -> Any:
        return x + self.unused[0, 0]


class Silent(type):
    """A class that nobody may ask for attributes that it lacks."""

    def __getattr__(cls, name: str) -> Any:
        raise AssertionError


class Unasked(metaclass=Silent):
    """An object of whose attributes nobody may ask for the value."""

    @property
    def shape(self) -> Any:
        raise AssertionError

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise AssertionError

    def __getattr__(self, name: str) -> Any:
        raise AssertionError


def apart(out: Any) -> list[Callable[[Any], Any]]:
    """Return functions that add one, near an array that they do not read."""
    state, slots = State(1, out), Slots(np.ones((1, 1)), out)
    here = module(one=1, out=out)
    unused, unasked = Unused(out), Unasked()
    return [
        unused,
        slots,
        slots.added,
        lambda x: x + state.buffer,
        lambda x: x + here.one,
        lambda x: x.map_blocks(unused),
        lambda x: unasked.shape if x is unasked else x + 1,
        lambda x: unasked.dtype if x is unasked else x + 1,
    ]


@pytest.mark.parametrize("at", range(len(apart(None))))
def test_attributes_that_code_does_not_name(at: int) -> None:
    out = np.empty_like(VALUES)
    dgpu.run(apart(out)[at], VALUES, out=out)
    np.testing.assert_array_equal(out, VALUES + 1)


def test_a_dataset_of_a_closed_file(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        closed = file.create_dataset("x", data=VALUES)
    out = np.empty_like(VALUES)
    dgpu.run(lambda x: x + (not closed), VALUES, out=out)
    np.testing.assert_array_equal(out, VALUES + 1)


class Mutual:
    """Methods that name each other."""

    def one(self, x: Any) -> Any:
        return self.two(x) + self.three(x)

    def two(self, x: Any) -> Any:
        return self.one(x) + self.three(x)

    def three(self, x: Any) -> Any:
        return self.one(x) + self.two(x) + GLOBAL


def test_what_is_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    within = captured._within

    def counted(value: Any, names: Any) -> Any:
        looked.append(value)
        return within(value, names)

    monkeypatch.setattr(captured, "_within", counted)

    def work(value: Any) -> int:
        looked.clear()
        list(arrays_in(value))
        return len(looked)

    assert [each is GLOBAL for each in arrays_in(Mutual().one)] == [True]
    assert work(Mutual().one) < 10
    assert work(lambda x: np.sum(da.exp(x)) + dgpu.matmul(x, x)) < 3000
    few, many = (da.ones((9, 9 * n), chunks=(9, 1)).rechunk((3, 9)) for n in (1, 10))
    assert work(many.dask) < 11 * work(few.dask)
