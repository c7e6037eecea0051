"""Watching a run: what counts as progress, and who is to blame when there is none."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dask_dgpu.errors import GangError
from dask_dgpu.runtime.program import Launch, Limits, Program
from dask_dgpu.runtime.scheduler.run import watch
from graph_opt.model.cost import HOST

TIMEOUT = 0.2
A, B = "tcp://a", "tcp://b"


def job(run_id: int, phase: str, done: int = 0, calling: bool = False) -> dict[str, Any]:
    return {"key": "gang", "run_id": run_id, "phase": phase, "done": done, "calling": calling}


class Scheduler:
    """A scheduler whose workers answer with what they are given to answer, or raise it."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.workers = answers

    def rpc(self, address: str) -> Any:
        async def answer() -> Any:
            found = self.workers[address]
            if isinstance(found, Exception):
                raise found
            return found

        return SimpleNamespace(dgpu_report=answer)


def failure(
    answers: dict[str, Any], seconds: float, watched: tuple[int, ...] = ()
) -> GangError | None:
    """Watch run 2 for so long, others too; return the error that it is given."""
    errors: list[GangError] = []

    async def main() -> None:
        program = Program((), (), (), HOST, limits=Limits(timeout=TIMEOUT))
        run: Any = SimpleNamespace(
            key="gang",
            run_id=2,
            program=program,
            launch=Launch(program, (), ("sum",)),
            members=(A, B),
            awaited={A, B},
            rank=(A, B).index,
            outcome=asyncio.Future(),
        )
        scheduler: Any = Scheduler(answers)
        asyncio.get_running_loop().call_later(seconds, run.outcome.cancel)
        others: dict[int, Any] = {
            run_id: SimpleNamespace(key="gang", run_id=run_id, outcome=asyncio.Future())
            for run_id in watched
        }
        await watch(scheduler, run, others, lambda run, error: errors.append(error))

    asyncio.run(main())
    return errors[0] if errors else None


def test_a_run_may_wait_for_the_one_before_it() -> None:
    """A worker is in a long function of an earlier run: the later one is not stuck."""
    ahead = job(1, "program (x, 0 of 1)", calling=True)
    assert failure({A: [job(2, "connect")], B: [ahead, job(2, "queued")]}, 6 * TIMEOUT) is None


def test_a_run_behind_one_that_stands_still_does_too() -> None:
    ahead = job(1, "program (x, 0 of 1)")
    error = failure({A: [job(2, "connect")], B: [ahead, job(2, "queued")]}, 20 * TIMEOUT)
    assert error is not None
    assert "no rank has made progress" in error.reason


def test_a_run_behind_one_that_is_watched_is_no_case_of_its_own() -> None:
    """That one may wait for a worker that this one does not have."""
    ahead = job(1, "program (x, 0 of 1)")
    answers = {A: [job(2, "connect")], B: [ahead, job(2, "queued")]}
    assert failure(answers, 6 * TIMEOUT, watched=(1,)) is None


@pytest.mark.parametrize("raised", [RuntimeError("changed size"), OSError(), ValueError("?")])
def test_an_error_of_a_status_call_is_no_answer(raised: Exception) -> None:
    moving = job(2, "program (x, 0 of 1)", calling=True)
    error = failure({A: [moving], B: raised}, 20 * TIMEOUT)
    assert error is not None
    assert error.worker == B
    assert "has not answered" in error.reason
