"""The check of settings, against a validator of JSON schemas."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from dask_dgpu.environment.settings import check, defaults, read, schema

NAMES = [
    "when",
    "on-error",
    "regions",
    "local-ranks",
    "comm.ports",
    "gang.timeout",
    "gang.restarts",
    "memory.limit",
    "memory.safety-margin",
    "comm",
    "gang",
    "gang.time",
    "wen",
    "when.x",
]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 4),
    st.floats(allow_nan=False),
    st.sampled_from(["always", "raise", "30s", ""]),
    st.lists(st.integers(), max_size=1),
)


@given(st.sampled_from(NAMES), VALUES)
def test_settings_are_checked_as_the_schema_says(name: str, value: Any) -> None:
    tree = value
    for part in reversed(name.split(".")):
        tree = {part: tree}
    wanted = Draft202012Validator(schema()["properties"]["dgpu"]).is_valid(tree)
    with nullcontext() if wanted else pytest.raises(ValueError, match="setting"):
        check({name: value})


def test_the_schema_is_valid_and_allows_the_defaults() -> None:
    Draft202012Validator.check_schema(schema())
    assert Draft202012Validator(schema()).is_valid(defaults())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"wen": 1}, r"unknown setting under dgpu: 'wen' \(did you mean 'when'\?\)"),
        ({"gang": {"time": 1}}, "unknown setting under dgpu.gang: 'time'"),
        ({"gang": 3}, "expected setting dgpu.gang to be object, got 3"),
        ({"when": {"x": 1}}, "expected setting dgpu.when to be one of cheaper, always, got dict"),
        ({"when": "x"}, "unknown value of setting dgpu.when: 'x', expected one of"),
        ({"gang": {"restarts": 1.5}}, "expected setting dgpu.gang.restarts to be integer of at l"),
        ({"memory": {"safety-margin": 1}}, "to be number of at least 0 below 1, got 1"),
        ({"memory": {"safety-margin": math.nan}}, "to be number of at least 0 below 1, got nan"),
        ({"memory": {"limit": 1j}}, "to be string or number or null, got 1j"),
    ],
)
def test_messages(values: dict[str, Any], message: str) -> None:
    with dask.config.set({"dgpu": values}), pytest.raises(ValueError, match=message):
        read()


def test_numbers_of_numpy_are_numbers() -> None:
    found = read({"memory_limit": np.int64(1 << 30), "local_ranks": np.int32(2)})
    assert (found.memory_limit, found.local_ranks) == (1 << 30, 2)
