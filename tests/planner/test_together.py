"""Which input blocks one task stages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dask_dgpu.planner.together import together

GANG = "dgpu-gang-1", 0
KEYS = [("x", at) for at in range(6)]


class State(SimpleNamespace):
    """Some state of Dask's, equal to nothing else."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


def scheduler_of(places: str, paused: str = "", known: Any = None) -> Any:
    """Return a scheduler with a block on each of these workers, ``-`` for none."""
    workers = {name: State(address=name) for name in "abc"}
    tasks = {
        key: State(who_has={workers[name]} if name in workers else set())
        for key, name in zip(KEYS, places, strict=True)
    }
    return State(
        tasks=tasks | ({} if known is None else {GANG: known}),
        running={worker for name, worker in workers.items() if name not in paused},
    )


def groups(scheduler: Any) -> list[str]:
    """Return the groups as strings of block numbers."""
    return ["".join(str(at) for _, at in group) for group in together(scheduler, GANG, KEYS)]


def test_blocks_of_one_worker_share_a_task() -> None:
    assert groups(scheduler_of("abacba")) == ["025", "14", "3"]


def test_missing_blocks_and_those_of_paused_workers_are_alone() -> None:
    assert groups(scheduler_of("a-a-bb")) == ["02", "1", "3", "45"]
    assert groups(scheduler_of("aabbaa", paused="a")) == ["0", "1", "23", "4", "5"]


def test_blocks_on_several_workers_are_alone() -> None:
    scheduler = scheduler_of("aaaaaa")
    scheduler.tasks[KEYS[2]].who_has = set(scheduler.running)
    assert groups(scheduler) == ["01345", "2"]


def test_a_known_gang_keeps_its_groups() -> None:
    def stage(number: int, *blocks: int) -> Any:
        return State(
            key=("dgpu-stage-1", number),
            dependencies={State(key=KEYS[at]) for at in blocks},
        )

    known = State(dependencies={stage(1, 3, 2), stage(0, 5), stage(2, 0, 1, 4)})
    assert groups(scheduler_of("aaaaaa", known=known)) == ["5", "23", "014"]
    other = State(dependencies={stage(0, 1)})
    assert groups(scheduler_of("aaaaaa", known=other)) == ["012345"]
