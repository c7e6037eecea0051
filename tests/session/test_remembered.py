"""What Dask asks about functions when it infers dtypes, answered from memory."""

from __future__ import annotations

import functools
import gc
import weakref
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import dask_dgpu as dgpu

METAS = import_module("dask.array.utils")


def keyword_only(x: Any, *, computing_meta: bool = False) -> Any:
    return x


FUNCTIONS = [
    keyword_only,
    functools.partial(keyword_only, computing_meta=True),
    functools.partial(keyword_only, 1),
    functools.partial(functools.partial(keyword_only), x=1),
    np.add,
    np.sum,
    abs,
    len,
    lambda x, computing_meta=None: x,
    int,
    np.vectorize(lambda x: x),
    3,
    [],
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=range(len(FUNCTIONS)))
@pytest.mark.parametrize("keyword", ["computing_meta", "x", "axis"])
def test_answers_are_those_of_dask(function: Any, keyword: str) -> None:
    expected = METAS.has_keyword(function, keyword)
    with dgpu.enable():
        assert METAS.has_keyword(function, keyword) == expected
        assert METAS.has_keyword(function, keyword) == expected


def test_a_function_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def signature(function: Any) -> Any:
        asked.append(function)
        raise ValueError

    with dgpu.enable():
        monkeypatch.setattr("inspect.signature", signature)
        for _ in range(3):
            METAS.has_keyword(keyword_only, "never asked before")
    assert asked == [keyword_only]


def test_functions_of_users_are_not_kept() -> None:
    block = np.zeros(3)

    def local(x: Any) -> Any:
        return x + block

    with dgpu.enable():
        METAS.has_keyword(local, "computing_meta")
        METAS.has_keyword(functools.partial(local), "computing_meta")
        kept = weakref.ref(local)
        del local
        gc.collect()
        assert kept() is None


def test_disabling_restores_the_original() -> None:
    original = METAS.has_keyword
    with dgpu.enable():
        assert METAS.has_keyword is not original
    assert METAS.has_keyword is original
