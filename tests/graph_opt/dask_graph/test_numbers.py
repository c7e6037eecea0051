"""Graphs that differ only in long numbers have one structure; nothing else becomes alike."""

from __future__ import annotations

import math
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.core import flatten
from hypothesis import given
from hypothesis import strategies as st

from graph_opt.dask_graph.sent import opened, pickled
from graph_opt.model.tokens import TYPES, Parameter, as_parameter, number, varies
from tests.graph_opt.dask_graph.test_texts import form, held

X = held(np.arange(35.0).reshape(7, 5))
LONG, OTHER = 0.123456789, -9.87654321e-7


def test_other_numbers_have_equal_bytes():
    for kind in TYPES.values():
        assert form(X * kind(LONG)).text == form(X * kind(OTHER)).text
    two = [form(X * a + b).text for a, b in ((LONG, OTHER), (OTHER, math.pi))]
    assert two[0] == two[1]


@pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES)
def test_what_is_no_parameter(kind):
    constants = [0.0, -0.0, 1.0, 0.5, 0.123, 1e-8, 1234.0, math.inf, -math.inf, math.nan]
    found = {form(X * kind(each)).text for each in constants}
    assert len(found) == len(constants)
    assert not any(varies(kind(each)) for each in constants)
    assert not varies(123456789)
    assert not varies("0.123456789")
    assert not varies(np.array(LONG))
    assert not varies(123456.0)
    assert varies(np.float32(123456))  # one in ten has so few digits


def test_types_and_equal_numbers_count():
    kinds = [form(X * kind(LONG)).text for kind in TYPES.values()]
    assert len(set(kinds)) == len(kinds)
    assert form(X * LONG + LONG).text != form(X * LONG + OTHER).text
    assert form(X * LONG).text != form(X + LONG).text


@given(
    st.sampled_from(sorted(TYPES)),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
)
def test_a_number_is_itself_again(kind, value):
    value = TYPES[kind](value)
    parameter = as_parameter(value)
    made = number(parameter.kind, parameter.token)
    assert type(made) is type(value)
    assert made.hex() == value.hex() if kind != "float32" else made.tobytes() == value.tobytes()


def test_a_graph_has_its_own_numbers_again():
    for value in (LONG, OTHER):
        z = da.maximum(da.from_array(np.arange(6.0), 4) * value, np.float64(value) + 1)
        found = form(z)
        graph, keys = found.open()
        given: list[Any] = [x for layer in graph.layers.values() for x in _operands(layer)]
        assert sum(isinstance(each, Parameter) for each in given) == 2
        again = opened(found.restored(pickled((graph, keys))), found.arrays)[0]
        wanted = list(flatten(z.__dask_keys__()))
        for one, two in zip(dask.get(again, wanted), dask.get(z.dask, wanted), strict=True):
            np.testing.assert_array_equal(one, two)


def _operands(layer: Any) -> list[Any]:
    return [x for x, index in getattr(layer, "indices", ()) if index is None]


def test_parameters_cannot_be_computed_with():
    with pytest.raises(TypeError):
        float(Parameter("float", "0" * 32))
    with pytest.raises(TypeError):
        Parameter("float", "0" * 32) * 2
