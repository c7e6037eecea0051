"""Programs of arrays, and their execution by ranks of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.core import flatten
from dask.local import get_sync

import dask_dgpu as dgpu
from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import HostDevice
from dask_dgpu.operations.operation import Blocks, Cost, Operation, Request, Value
from dask_dgpu.runtime.execute import execute
from dask_dgpu.runtime.plans import Owners, Plans, costs_of, plans
from dask_dgpu.runtime.prepared import Prepared, RankStep, prepared
from dask_dgpu.runtime.program import Key, Launch, Program
from dask_dgpu.runtime.ship import HEADER as HEADER
from graph_opt.model.layout import dealt
from graph_opt.model.names import is_gang
from tests.support.recording import Ledger, RecordingComm

Staged = list[list[Any]]
"""The blocks of each input of a program, in row-major order."""

ALWAYS: dict[str, Any] = {"when": "always", "on_error": "raise"}


def launch_of(z: da.Array, ranks: int, **settings: Any) -> Launch:
    """Return the launch of the only gang that computes an array."""
    with dgpu.enable(local_ranks=ranks, **ALWAYS | settings) as enabled:
        done = enabled.optimizer.rewrite(z.dask, z.__dask_keys__())
        ((region, _),) = done.regions
        return enabled.optimizer.launch(region, done.reader)


def launches_of(tasks: Mapping[Key, Any]) -> list[Launch]:
    """Return the launches of the gangs in a graph of tasks."""
    return [task.args[0] for key, task in tasks.items() if is_gang(key)]


def staged_of(
    tasks: Mapping[Key, Any], given: Mapping[Key, Any] = MappingProxyType({})
) -> tuple[Launch, Staged]:
    """Return the launch of the only gang in a graph, and the blocks of its inputs.

    Some blocks that the graph lacks are ``given``.
    """
    (gang,) = filter(is_gang, tasks)
    launch, *lists = tasks[gang].args
    whole = {**tasks, **given}
    return launch, [list(get_sync(whole, [ref.key for ref in each.args])) for each in lists]


def loaded(z: da.Array, ranks: int, **settings: Any) -> tuple[Launch, Staged]:
    """Return the launch of the only gang of an array, and the blocks of its inputs."""
    with dgpu.enable(local_ranks=ranks, **ALWAYS | settings):
        optimizer = dask.config.get("array_optimize")
        return staged_of(optimizer(z.__dask_graph__(), list(flatten(z.__dask_keys__()))))


def steps_of(todo: Prepared) -> list[RankStep]:
    """Return all steps of a rank, in order."""
    return [step for stretch in todo.stretches for step in stretch.steps]


def even(program: Program, size: int) -> Owners:
    """Return even shares of all inputs."""
    return tuple(dealt(len(value.indices()), size) for value in program.inputs)


def scattered(program: Program, size: int, seed: int) -> Owners:
    """Return random places of all blocks."""
    rng = np.random.default_rng(seed)
    counts = (len(value.indices()) for value in program.inputs)
    return tuple(tuple(rng.integers(size, size=count).tolist()) for count in counts)


def slices(value: Value, index: tuple[int, ...]) -> tuple[slice, ...]:
    """Return the place of a block in its array."""
    return tuple(slice(c[i], c[i + 1]) for c, i in zip(value.cuts, index, strict=True))


def cut(array: Any, value: Value) -> list[Any]:
    """Return the blocks of an array."""
    return [array[slices(value, index)].copy() for index in value.indices()]


def share(program: Program, owners: Owners, staged: Staged, rank: int) -> list[Blocks]:
    """Return the blocks of each input that a rank has."""
    return [
        {
            index: block
            for index, block, owner in zip(value.indices(), blocks, places, strict=True)
            if owner == rank
        }
        for value, blocks, places in zip(program.inputs, staged, owners, strict=True)
    ]


@dataclass
class Ran:
    """The blocks that each rank has returned, and what it has sent."""

    parts: list[dict[Key, Any]]
    ledgers: list[Ledger]

    @property
    def blocks(self) -> dict[Key, Any]:
        """All blocks of the results."""
        return {key: block for part in self.parts for key, block in part.items()}

    @property
    def sent(self) -> int:
        """The bytes that all ranks have sent."""
        return sum(ledger.bytes_sent for ledger in self.ledgers)


def run(launch: Launch, planned: Plans, owners: Owners, staged: Staged, size: int) -> Ran:
    """Run a planned program; each block must be where the plan says, and there alone."""
    program = launch.program

    def rank(comm: Comm) -> tuple[dict[Key, Any], Ledger]:
        recorded = RecordingComm(comm)
        mine = share(program, owners, staged, comm.rank)
        todo = prepared(program, planned, comm.rank)
        return execute(todo, launch.names, recorded, HostDevice(), mine), recorded.ledger

    parts, ledgers = map(list, zip(*run_local(size, rank), strict=True))
    placed = placed_by(launch, planned)
    assert sum(map(len, parts)) == len(placed)
    assert {key: at for at, part in enumerate(parts) for key in part} == placed
    return Ran(parts, ledgers)


def planned(program: Program, owners: Owners, size: int) -> Plans:
    """Return the plans of a program whose inputs lie at these ranks."""
    return plans(program, owners, size)


def costs(program: Program, owners: Owners, size: int) -> list[Cost]:
    """Return the costs of the collectives of a program, in order."""
    return list(costs_of(program, planned(program, owners, size)).values())


def on_threads(size: int, program: Callable[[Comm], Any]) -> list[Any]:
    """Run a function of a communicator on ranks that are threads; return the results."""
    return run_local(size, program)


def run_operation(
    operation: Operation, plan: Any, given: Request, blocks: Sequence[Blocks], comm: Comm
) -> Blocks:
    """Run an operation by its plan on a rank that has its own ones of these blocks."""
    mine = (
        {index: operand[index] for index in each.layout.owned(comm.rank)}
        for each, operand in zip(given.inputs, blocks, strict=True)
    )
    steps: list[Any] = []
    made = operation.run(plan, comm, HostDevice(), *mine, progress=lambda *done: steps.append(done))
    assert steps[-1][0] == steps[-1][1] == len(steps)
    return made[0] if isinstance(made, tuple) else made


def run_at(launch: Launch, owners: Owners, staged: Staged, size: int) -> Ran:
    """Plan and run a program whose inputs lie at these ranks."""
    return run(launch, plans(launch.program, owners, size), owners, staged, size)


def run_evenly(launch: Launch, staged: Staged, size: int) -> Ran:
    """Plan and run a program whose inputs have even shares."""
    return run_at(launch, even(launch.program, size), staged, size)


@dataclass
class Scattered:
    """What ranks have made of an array whose input blocks lie anywhere, and what was planned."""

    value: Any
    costs: list[Cost]
    ledgers: list[Ledger]


def run_scattered(
    z: da.Array, ranks: int, seed: int, room: float | None = None, **rates: Any
) -> Scattered:
    """Compute an array on ranks; ``rates`` replace those of the machine it is planned for."""
    launch, staged = loaded(z, ranks)
    machine = replace(launch.program.machine, **rates)
    launch = replace(launch, program=replace(launch.program, machine=machine, room=room))
    owners = scattered(launch.program, ranks, seed)
    planned = plans(launch.program, owners, ranks)
    with np.errstate(all="ignore"):
        ran = run(launch, planned, owners, staged, ranks)
    value = joined(ran.blocks, z.__dask_keys__())
    return Scattered(value, list(costs_of(launch.program, planned).values()), ran.ledgers)


def placed_by(launch: Launch, planned: Plans) -> dict[Key, int]:
    """Return the rank of each block of the results."""
    return {
        (launch.names[number], *index): planned.values[number].layout.owner(index)
        for number, blocks in launch.program.outputs
        for index in blocks
    }


def joined(blocks: Mapping[Key, Any], keys: Sequence[Any]) -> Any:
    """Return the array of all blocks, by the nested keys of Dask."""

    def nested(each: Any) -> Any:
        return [nested(one) for one in each] if isinstance(each, list) else blocks[each]

    return np.block(nested(keys))


def returned_by(launch: Launch) -> Iterator[Any]:
    """Yield what is known of the first block of each node of Dask's that reads another."""
    program = launch.program
    kinds = {at: (value.dtype, len(value.cuts)) for at, value in enumerate(program.values)}
    for number, node in program.numbered.items():
        if node.operation is None and node.reads:
            yield program.blockworks[number].returned(node.value.indices()[0], kinds)
