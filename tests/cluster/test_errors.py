"""Errors of block functions arrive as plain Dask's, with a note that says where they were."""

from __future__ import annotations

import asyncio
import re
import threading
import traceback
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Reschedule

import dask_dgpu as dgpu
from dask_dgpu.errors import CommError, GangError, OutOfMemoryError
from tests.cluster.observe import eventually, left_over

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

A = np.random.default_rng(7).random((12, 12))


class NeedsTwoError(Exception):
    """An error that cannot be made again from its ``args``."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"{what} {code}")
        self.code = code


class LockedError(Exception):
    """An error that does not pickle."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


def raises(kind: type[BaseException], *args: Any) -> Callable[[Any], Any]:
    def broken(block: Any) -> Any:
        raise kind(*args)

    return broken


def divides(block: Any) -> Any:
    return block * (1 // int(block.shape[0] * 0))


def overflows(block: Any) -> Any:
    with np.errstate(over="raise"):
        return np.full(block.shape, 1e300) * 1e300


def inverts(block: Any) -> Any:
    return np.linalg.inv(np.zeros((3, 3)))


def allocates(block: Any) -> Any:
    return np.empty((1 << 40, 1 << 10))


def ends_early(block: Any) -> Any:
    return next(iter(()))


def has_a_cause(block: Any) -> Any:
    try:
        return divides(block)
    except ZeroDivisionError as error:
        raise LookupError("no such number") from error


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "ZeroDivisionError": divides,
    "FloatingPointError": overflows,
    "LinAlgError": inverts,
    "StopIteration": ends_early,
    "a cause": has_a_cause,
    "OSError": raises(FileNotFoundError, 2, "no such file", "here"),
    "its own arguments": raises(NeedsTwoError, 3, "code"),
    "locked": raises(LockedError, "no pickle"),
    "CancelledError": raises(asyncio.CancelledError, "mine"),
    "GangError": raises(GangError, "of another gang", 1),
}


CHANGED = ("StopIteration", "CancelledError", "locked")
"""What Dask itself raises as another error."""


def error_here(function: Callable[[Any], Any]) -> BaseException:
    with pytest.raises(BaseException) as raised:  # noqa: PT011 - whatever it is
        function(A[:6, :6])
    return raised.value


def product(function: Callable[[Any], Any], x: da.Array) -> da.Array:
    return (x @ x).map_blocks(function, dtype=float, meta=x._meta)


def error_of(z: da.Array, **how: Any) -> BaseException:
    with pytest.raises(BaseException) as raised:  # noqa: PT011 - whatever it is
        z.compute(**how)
    return raised.value


def check(found: BaseException, wanted: BaseException) -> None:
    assert type(found) is type(wanted)
    assert str(found) == str(wanted)
    assert {k: v for k, v in vars(found).items() if k not in ("__notes__", "lock")} == {
        k: v for k, v in vars(wanted).items() if k not in ("__notes__", "lock")
    }
    assert type(found.__cause__) is type(wanted.__cause__)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fused"), [*((name, False) for name in FUNCTIONS), ("ZeroDivisionError", True)]
)
def test_as_in_plain_dask(client: Any, on_device: Any, name: str, fused: bool) -> None:
    z = product(FUNCTIONS[name], on_device(A, 6))
    z = abs(z) + 1 if fused else z
    found = error_of(z)
    with dask.config.set(array_optimize=da.optimize):
        wanted = error_of(z)
    check(found, wanted)
    if name not in CHANGED:
        assert type(found) is type(error_here(FUNCTIONS[name]))
        (where,) = [note for note in found.__notes__ if note.startswith("on rank ")]
        assert any(address in where for address in client.scheduler_info()["workers"])
    if name == "ZeroDivisionError":
        assert "in divides" in "".join(traceback.format_exception(found))
    eventually(lambda: left_over(client) == 0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_without_a_cluster(name: str) -> None:
    z = product(FUNCTIONS[name], da.from_array(A, chunks=6))
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        found = error_of(z, scheduler="sync")
    check(found, error_here(FUNCTIONS[name]))
    if name != "CancelledError":
        assert any("on rank " in note for note in found.__notes__)


def check_sentence(found: BaseException) -> None:
    """Check the error of a program that ran twice, the second time planned with less."""
    assert type(found) is OutOfMemoryError
    assert isinstance(found, MemoryError)
    own = str(error_here(allocates))
    wanted = rf"twice: with .* planned on a rank, and with .*: {re.escape(own)}; set dgpu"
    assert re.search(wanted, str(found))
    assert "in allocates" in "".join(traceback.format_exception(found))
    assert any("on rank " in note for note in found.__notes__)


def test_memory_for_a_block(client: Any, on_device: Any) -> None:
    check_sentence(error_of(product(allocates, on_device(A, 6))))
    eventually(lambda: left_over(client) == 0)


def test_memory_for_a_block_without_a_cluster() -> None:
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        check_sentence(error_of(product(allocates, da.from_array(A, chunks=6)), scheduler="sync"))


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (raises(Reschedule), "a block function raised Reschedule, and a gang runs no block elsew"),
        (raises(SystemExit, 3), "SystemExit: 3"),
        (raises(KeyboardInterrupt), "KeyboardInterrupt"),
        (raises(CommError, "a peer of another gang"), "CommError: a peer of another gang"),
    ],
    ids=["Reschedule", "SystemExit", "KeyboardInterrupt", "CommError"],
)
def test_what_would_end_a_worker_or_begin_again(
    client: Any, on_device: Any, function: Callable[[Any], Any], match: str
) -> None:
    workers = set(client.scheduler_info()["workers"])
    with pytest.raises(GangError, match=match):
        product(function, on_device(A, 6)).compute()
    assert set(client.scheduler_info()["workers"]) == workers


def test_blocks_that_are_not_what_was_declared(client: Any, on_device: Any) -> None:
    cropped = product(lambda block: block[1:], on_device(A, 6))
    with pytest.raises(ValueError, match=r"is declared with shape \(6, 6\) but has \(5, 6\)"):
        (cropped @ cropped).compute()


@pytest.mark.slow  # the scheduler waits for two seconds
def test_a_worker_that_does_not_take_the_answer(client: Any, on_device: Any) -> None:
    """The scheduler fails the task with what was raised, which it need not know itself."""

    def mend(dask_worker: Any) -> None:
        del dask_worker.plugins["dask-dgpu"].run_gang

    def silent(dask_worker: Any) -> None:
        plugin = dask_worker.plugins["dask-dgpu"]
        answer = plugin.run_gang

        def run_gang(*args: Any) -> Any:
            try:
                return answer(*args)
            finally:
                threading.Event().wait(3)

        plugin.run_gang = run_gang

    client.run(silent)
    try:
        with pytest.raises(ZeroDivisionError) as raised:
            product(divides, on_device(A, 6)).compute()
    finally:
        client.run(mend)
    assert any(note.startswith("on rank ") for note in raised.value.__notes__)
