"""Creation functions of Dask that know no backend ask the one of ``array.backend``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.array.backends import NumpyBackendEntrypoint, array_creation_dispatch

import dask_dgpu as dgpu
from dask_dgpu.session.creation import UNDISPATCHED, made_by

BACKEND = "array.backend"


class Blocks(np.ndarray[Any, Any]):
    """Blocks of a device that does not exist."""


def eye(*args: Any) -> Any:
    return np.eye(*args).view(Blocks)


def zeros(*args: Any) -> Any:
    return np.zeros(*args).view(Blocks)


def linspace(*args: Any, **kwargs: Any) -> Any:
    return np.linspace(*args, **kwargs).view(Blocks)


FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    np.eye: eye,
    np.zeros: zeros,
    da.chunk.linspace: linspace,
}

CALLS = {
    "eye": lambda: da.eye(7, chunks=3),
    "eye, upper": lambda: da.eye(7, chunks=3, M=9, k=2, dtype="complex64"),
    "eye, lower": lambda: da.eye(9, chunks=4, M=5, k=-6, dtype=bool),
    "eye, one block": lambda: da.eye(2),
    "linspace": lambda: da.linspace(-1, 2, 11, chunks=4),
    "linspace, open": lambda: da.linspace(0, 5, 7, endpoint=False, chunks=3, dtype="float32"),
    "linspace, step": lambda: da.linspace(0, 5, 7, retstep=True, chunks=3)[0],
}


class Backend(NumpyBackendEntrypoint):
    @staticmethod
    def eye(*args: Any, **kwargs: Any) -> Any:
        with dask.config.set({BACKEND: "numpy"}):
            return made_by(da.eye(*args, **kwargs), FUNCTIONS, np.zeros((0, 0)).view(Blocks))


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(array_creation_dispatch._lookup, "blocks", Backend())
    return "blocks"


@pytest.mark.parametrize("name", CALLS)
def test_graphs_on_the_host_are_dasks_own(name: str) -> None:
    plain = CALLS[name]()
    for backend in ("numpy", "dgpu"):
        with dgpu.enable(device="cpu"), dask.config.set({BACKEND: backend}):
            if backend == "dgpu" and type(array_creation_dispatch.dispatch("dgpu")) is not (
                NumpyBackendEntrypoint
            ):
                continue
            found = CALLS[name]()
        assert found.name == plain.name
        assert dict(found.dask) == dict(plain.dask)
        assert type(found._meta) is np.ndarray


@pytest.mark.parametrize("name", CALLS)
def test_blocks_are_made_by_other_functions_under_other_keys(name: str) -> None:
    plain = CALLS[name]()
    found = made_by(plain, FUNCTIONS, np.zeros((0,) * plain.ndim, plain.dtype).view(Blocks))
    assert (found.chunks, found.dtype, type(found._meta)) == (plain.chunks, plain.dtype, Blocks)
    assert not {*found.dask} & {*plain.dask}
    blocks = dask.compute(*found.to_delayed().ravel(), scheduler="sync")
    assert {type(block) for block in blocks} == {Blocks}
    np.testing.assert_array_equal(found.compute(scheduler="sync"), plain.compute())
    assert found.name == made_by(plain, FUNCTIONS, np.zeros(()).view(Blocks)).name


def test_a_backend_is_asked_while_enabled(backend: str) -> None:
    with dask.config.set({BACKEND: backend}):
        assert type(da.eye(3)._meta) is np.ndarray
        with dgpu.enable(device="cpu"):
            assert type(da.eye(3)._meta) is Blocks
            assert type(da.linspace(0, 1, 3)._meta) is np.ndarray  # it has none
            with pytest.raises(ValueError, match="chunks must be an int or string"):
                da.eye(4, chunks=(2, 2))
        assert type(da.eye(3)._meta) is np.ndarray


def test_functions_keep_their_names_and_signatures() -> None:
    own = [getattr(da, name) for name in UNDISPATCHED]
    with dgpu.enable(device="cpu"):
        for name, original in zip(UNDISPATCHED, own, strict=True):
            function: Any = getattr(da, name)
            assert (function.__name__, function.__wrapped__) == (name, original)
    assert [getattr(da, name) for name in UNDISPATCHED] == own
