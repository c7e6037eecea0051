"""Calls that add the same layers again: templates give what Dask builds, under other names."""

from __future__ import annotations

import gc
import operator
import os
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MappingProxyType
from typing import Any

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
from dask.array import core
from dask.array.core import Array
from dask.base import annotate
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from dask_dgpu.session import building
from dask_dgpu.session.building import NAME, replaying
from graph_opt.dask_graph.internals import GraphNode, TaskRef
from graph_opt.dask_graph.sent import SentGraph
from tests.support.calls import Counting

Build = Callable[..., Any]

PROGRAMS: dict[str, Build] = {
    "add": lambda x, y, s: x + y,
    "itself": lambda x, y, s: x * x - x,
    "broadcast": lambda x, y, s: x - y[0] + y[:, :1],
    "number": lambda x, y, s: (s * x) ** 2,
    "two numbers": lambda x, y, s: (x * 0.5 + y * 0.25) / s,
    "no axes": lambda x, y, s: x * x.sum() - y.max(),
    "ufunc": lambda x, y, s: np.hypot(da.exp(x), y),
    "where": lambda x, y, s: da.where(x > s, x, y),
    "masked add": lambda x, y, s: da.add(x, y, where=x > 0),
    "typed": lambda x, y, s: da.add(x, y, dtype="f8"),
    "sums": lambda x, y, s: x.sum(axis=0) + y.sum() - x.sum(axis=1, keepdims=True)[0],
    "moments": lambda x, y, s: (x.mean(axis=0), x.var(ddof=1), y.std(axis=1)),
    "extremes": lambda x, y, s: (x.max(axis=1), y.argmin(axis=0), (x > y).any()),
    "deep": lambda x, y, s: x.sum(split_every=2),
    "product": lambda x, y, s: x @ y.T,
    "vector": lambda x, y, s: x.T @ (x @ y[0]),
    "contraction": lambda x, y, s: da.tensordot(x, y, axes=((0, 1), (0, 1))),
    "transposed": lambda x, y, s: x.T + y.transpose((1, 0)),
    "slices": lambda x, y, s: x[1:, ::2] - y[:-1, ::2],
    "aligned": lambda x, y, s: x + y.rechunk((2, 5)),
    "cast": lambda x, y, s: x.astype("f8") + y,
    "stacked": lambda x, y, s: da.stack([x, y]).sum(axis=0) + da.concatenate([x, y])[:6],
    "mapped": lambda x, y, s: da.map_blocks(np.clip, x, 0, s, dtype=x.dtype) + y,
    "masked": lambda x, y, s: x[y[:, 0] > 1, 1:],
    "two names": lambda x, y, s: (x + y) * (x + y),
}
DTYPES = ["i4", "f2", "f4", "f8", "c8"]
SCALARS = [2, 0.5, -0.0, 0.0, 1e-300, float("inf"), True, 1j, np.float32(1.5), np.int8(3)]


class Numbered:
    """What is known of an array, with numbers in place of the tokens in its layers' names."""

    def __init__(self, array: Array) -> None:
        self.layers = array.dask.layers
        self.names: dict[str, str] = {}
        facts = [array.chunks, array.shape, array.numblocks, array.npartitions]
        facts += [array.dtype, type(array._meta), array._meta.dtype, array._meta.shape]
        self.parts = [self.plain(facts), self.plain(array.__dask_keys__())]
        done = 0
        while done < len(self.names):  # more names are found on the way
            name = [*self.names][done]
            done += 1
            if name not in self.layers:
                continue  # tasks within a layer
            layer = self.layers[name]
            own = sorted((at, each) for at, each in vars(layer).items() if at != "_cached_dict")
            parts = self.plain(own)
            read = sorted(map(self.plain, array.dask.dependencies[name]))
            self.parts.append([self.names[name], type(layer), parts, read])
        assert self.names.keys() >= self.layers.keys()

    def plain(self, value: Any) -> Any:
        """Return what can be compared: functions, tasks and layers by what is in them."""
        if isinstance(value, str) and (value in self.layers or NAME.match(value)):
            new = f"{value.rpartition('-')[0]}-{len(self.names)}"
            return self.names.setdefault(value, new)
        if isinstance(value, GraphNode):
            slots = ("key", "func", "args", "kwargs", "target", "value")
            return type(value), [self.plain(getattr(value, name, None)) for name in slots]
        if isinstance(value, TaskRef):
            return type(value), self.plain(value.key)
        if isinstance(value, partial):
            return type(value), self.plain((value.func, value.args, value.keywords))
        if hasattr(value, "funcs") and hasattr(value, "first"):
            return type(value), self.plain((value.first, value.funcs))
        if isinstance(value, dict | MappingProxyType):
            return [(self.plain(key), self.plain(each)) for key, each in value.items()]
        if isinstance(value, tuple | list):
            return type(value), [self.plain(each) for each in value]
        if isinstance(value, np.ndarray):
            return value.dtype, value.shape, value.tobytes()
        if isinstance(value, float):
            return type(value), repr(value)
        return type(value), value


def described(found: Any) -> list[Any]:
    """Return all that is known of the arrays that a program builds, but their names."""
    return [Numbered(array).parts for array in as_arrays(found)]


def as_arrays(found: Any) -> tuple[Array, ...]:
    return found if isinstance(found, tuple) else (found,)


def inputs(dtype: str, seed: int, shape: tuple[int, int] = (6, 10)) -> list[Array]:
    x = da.from_array(np.full(shape, seed, dtype), chunks=(3, 4))
    return [x, da.from_array(np.full(shape, seed + 1, dtype), chunks=(3, 4))]


def built(program: Build, dtype: str, scalar: Any, seed: int) -> tuple[Any, list[str]]:
    try:
        found = program(*inputs(dtype, seed), scalar)
        return described(found), [array.name for array in as_arrays(found)]
    except Exception as error:
        return [type(error), str(error)], []


@given(
    st.sampled_from(sorted(PROGRAMS)),
    st.sampled_from(DTYPES),
    st.lists(st.sampled_from(SCALARS), min_size=3, max_size=3),
)
def test_templates_give_what_dask_builds(name: str, dtype: str, scalars: list[Any]) -> None:
    program, calls = PROGRAMS[name], [*enumerate(scalars), (0, scalars[0])]
    with np.errstate(all="ignore"):
        expected = [built(program, dtype, s, seed) for seed, s in calls]
        with dgpu.enable():
            found = [built(program, dtype, s, seed) for seed, s in calls]
    assert [parts for parts, _ in found] == [parts for parts, _ in expected]
    own, dasks = ([each for _, names in runs for each in names] for runs in (found, expected))
    assert len({*zip(own, dasks, strict=True)}) == len({*own}) == len({*dasks})


@pytest.mark.slow
def test_another_process_gives_the_same_names() -> None:
    code = """
import dask.array as da, dask_dgpu as dgpu
x = da.ones((6, 10), chunks=(3, 4))
with dgpu.enable():
    print((x @ (0.5 * x).T).name, x.std(axis=1).name, da.tensordot(x, x[::2], (1, 1)).name)
"""
    runs = (
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        )
        for seed in "12"
    )
    assert len({run.stdout for run in runs}) == 1


x, y = inputs("f4", 0)


def known(a: Any, b: Any = 0.0) -> Any:
    return a


CALLS: list[tuple[str, list[Any], int]] = [
    ("floats", [(operator.mul, x, 0.5), (operator.mul, x, -0.0), (operator.mul, y, 1e-300)], 1),
    ("integers", [(operator.mul, x, 2), (operator.mul, x, 3), (operator.mul, y, 3)], 2),
    ("order", [(operator.sub, x, y), (operator.sub, y, x), (operator.sub, x, x)], 2),
    ("kinds", [(operator.mul, x, 2.0), (operator.mul, x, np.float64(2)), (operator.mul, x, 2)], 3),
    ("other values", [(np.clip, x, 0.0, 1.0), (np.clip, x, -0.0, 1.0), (np.clip, y, 0.0, 1.0)], 2),
    ("chunks", [(np.exp, x), (np.exp, x.rechunk(2)), (np.exp, y)], 2),
    ("dtypes", [(np.exp, x), (np.exp, x.astype("f8")), (np.exp, y)], 2),
    ("own functions", [(known, x), (known, y), (known, x)], 3),
    ("lambdas", [(lambda a: a, x), (lambda a: a, y)], 2),
    ("arrays", [(np.add, x, np.ones(10, "f4")), (np.add, x, np.ones(10, "f4"))], 2),
    ("masked", [(np.exp, da.ma.masked_equal(x, 1))] * 2, 2),
    ("rechunks", [(np.add, x, y.rechunk(2)), (np.add, y, x.rechunk(2))], 3),
]


@pytest.mark.parametrize(("args", "builds"), [c[1:] for c in CALLS], ids=[c[0] for c in CALLS])
def test_dask_builds_one_call_of_a_kind(args: list[Any], builds: int) -> None:
    counting = Counting(core.elemwise)
    elemwise = replaying(counting)
    with dgpu.enable():
        found = [elemwise(*each) for each in args]
    expected = [core.elemwise(*each) for each in args]
    assert described(tuple(found)) == described(tuple(expected))
    assert counting.calls == builds


def test_errors_are_those_of_dask_and_name_the_callers_numbers() -> None:
    def fails(*args: Any) -> Any:
        raise ValueError(f"got {args[1:]}")

    with dgpu.enable(), pytest.raises(ValueError, match=r"got \('array', 0.25\)"):
        replaying(fails)(operator.mul, "array", 0.25)
    with dgpu.enable():
        for _ in range(2):
            with pytest.raises(ValueError, match="could not be broadcast"):
                x + da.zeros((7, 7), dtype="f4")
            with pytest.raises(OverflowError):
                da.zeros(4, dtype="u1", chunks=2) + 300


def test_annotations_and_settings_count() -> None:
    def layers() -> list[Any]:
        with dask.config.set(split_every=2):
            few = x.sum()
        with annotate(priority=3):
            urgent = np.exp(x)
        return described((few, x.sum(), urgent, np.exp(x)))

    expected = layers()
    with dgpu.enable():
        assert [layers(), layers()] == [expected, expected]


@pytest.mark.parametrize("name", ["x", "it's", 'a"b', "back\\slash", "line\nbreak", "ünï"])
def test_names_of_users(name: str) -> None:
    array = da.zeros(4, chunks=2, name=name)

    def layers() -> list[Any]:
        return described((array + 1.0, array.sum(), array[1:], array @ array))

    expected = layers()
    with dgpu.enable():
        assert [layers(), layers()] == [expected, expected]


def test_a_name_that_the_caller_gives_is_kept() -> None:
    token = "0123456789abcdef" * 2
    with dgpu.enable():
        for name in (f"a-{token}", f"b-{token}", "c"):
            assert da.blockwise(np.exp, "ij", x, "ij", name=name, dtype="f4").name == name
            assert da.core.elemwise(np.exp, x, name=name).name == name


def test_functions_that_differ_in_what_they_hold() -> None:
    def summed(size: int) -> Array:
        return da.blockwise(
            np.sum, "i", x, "ij", axis=1, concatenate=True, adjust_chunks={"i": lambda n: size}
        )

    with dgpu.enable():
        assert [summed(n).chunks for n in (1, 2, 1)] == [((n, n),) for n in (1, 2, 1)]


def test_templates_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "MOST_TEMPLATES", 8)
    elemwise = replaying(counting := Counting(core.elemwise))
    with dgpu.enable():
        for number in range(100):
            elemwise(operator.mul, x, number)
        elemwise(operator.mul, y, 99)
        assert counting.calls == 100
        elemwise(operator.mul, x, 1)
    assert counting.calls == 101  # forgotten


def test_large_layers_are_left_to_dask() -> None:
    indexed = replaying(counting := Counting(Array.__getitem__))
    small, large = da.zeros((8, 8), chunks=4), da.zeros((40, 40), chunks=1)
    with dgpu.enable():
        for _ in range(3):
            indexed(small, slice(1, None))
        assert counting.calls == 1
        for _ in range(3):
            indexed(large, slice(1, None))
    assert counting.calls == 5  # the first one twice


def test_templates_keep_no_graphs() -> None:
    z = da.from_array(np.ones(7), chunks=3)
    data = weakref.ref(z.dask)
    with dgpu.enable():
        described((z + 1.0, z.sum(), z @ z, z[1:]))
        del z
        gc.collect()
        assert data() is None


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_the_first_run_has_the_structure_of_later_ones(name: str) -> None:
    shape = (6, len(PROGRAMS) + sorted(PROGRAMS).index(name))  # no call of this kind before

    def structure(seed: int) -> bytes:
        found = PROGRAMS[name](*inputs("f4", seed, shape), 0.5)
        arrays = as_arrays(found)
        graph = HighLevelGraph.merge(*(array.dask for array in arrays))
        keys = [key for array in arrays for key in flatten(array.__dask_keys__())]
        return SentGraph.of(pickle.loads(cloudpickle.dumps(graph)), keys).text

    with dgpu.enable():
        first = structure(0)
        assert structure(1) == first
        assert structure(2) == first


def test_threads_build_at_the_same_time() -> None:
    def build(seed: int) -> Any:
        return [described(PROGRAMS[name](*inputs("f8", seed), 0.5)) for name in sorted(PROGRAMS)]

    expected = [build(seed) for seed in range(4)]
    with dgpu.enable(), ThreadPoolExecutor(4) as executor:
        assert list(executor.map(build, range(4))) == expected
