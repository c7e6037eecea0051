"""Errors of ranks, pickled for a scheduler that does not know them."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from distributed import Reschedule

from dask_dgpu.errors import CommError, DgpuError, GangError
from dask_dgpu.kernels.device import HostDevice
from dask_dgpu.runtime.failure import RankError, failure_of, opened, pickled
from dask_dgpu.runtime.program import Launch, Program
from dask_dgpu.runtime.tasks import gang
from graph_opt.model.cost import HOST

WHERE = (2, "tcp://here:1")


def failure(error: BaseException, phase: str = "program (c, 2 of 8)") -> Any:
    try:
        raise error
    except BaseException as raised:
        return failure_of(raised, *WHERE, phase)


def test_arrives_as_itself() -> None:
    found = opened(pickle.dumps(failure(KeyError("a", 3))))
    assert (type(found), found.args) == (KeyError, ("a", 3))
    assert found.__notes__ == [
        "on rank 2 of a gang, worker tcp://here:1, phase program (c, 2 of 8)"
    ]
    assert found.__traceback__ is not None


@pytest.mark.parametrize("error", [CommError("lost"), Reschedule(), SystemExit(1)], ids=repr)
def test_stays_the_gangs(error: BaseException) -> None:
    found = opened(pickle.dumps(failure(error)))
    assert type(found) is GangError
    assert (found.rank, found.worker) == WHERE


@pytest.mark.parametrize("phase", ["connect", "program (c, 2 of 8)"])
@pytest.mark.parametrize("transfer", [False, True])
def test_a_lack_of_memory_counts_in_any_phase(phase: str, transfer: bool) -> None:
    error: Exception = RuntimeError("Cuda failure 2 'out of memory'")
    if transfer:
        cause, error = error, CommError("exchange failed")
        error.__cause__ = cause
    found = failure(error, phase)
    assert type(found) is RankError
    assert found.out_of_memory
    assert pickle.loads(pickle.dumps(found)).out_of_memory
    assert f"phase {phase}" in str(found)


def test_before_a_step_it_is_the_gangs() -> None:
    found = opened(pickle.dumps(failure(KeyError("a"), phase="connect")))
    assert type(found) is GangError
    assert str(found).startswith("KeyError: 'a' (rank 2")


def test_whose_class_only_the_rank_can_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever hands it on need not import it, and the caller gets its text."""
    module = ModuleType("only_there")
    kind = type("RareError", (Exception,), {"__module__": "only_there"})
    vars(module)["RareError"] = kind
    monkeypatch.setitem(sys.modules, "only_there", module)
    payload = pickle.dumps(failure(kind("a rare one")))
    monkeypatch.delitem(sys.modules, "only_there")
    passed_on = pickle.loads(payload)
    assert type(passed_on) is RankError
    assert b"only_there" in pickled(passed_on)
    found = opened(pickle.dumps(passed_on))
    assert type(found) is GangError
    assert found.reason == "RareError: a rare one"


@pytest.mark.parametrize("threads", [1, 3])
def test_no_error_of_a_block_function_is_taken_for_an_end(threads: int) -> None:
    def each(work: Callable[[int], int]) -> Any:
        return HostDevice(threads).each(work, range(5))

    def ends(item: int) -> int:
        return item if item < 3 else next(iter(()))

    assert each(abs) == [0, 1, 2, 3, 4]
    with pytest.raises(StopIteration):
        each(ends)


def test_a_cluster_with_the_plugin_on_some_workers() -> None:
    staged = [("stage-x", "tcp://127.0.0.1:1")]
    launch = Launch(Program((), (), (), HOST), (), ())
    with pytest.raises(DgpuError, match="some workers of this cluster have no dask_dgpu plugin"):
        gang(launch, staged)
