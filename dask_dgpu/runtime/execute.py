"""The execution of a program on one rank."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from dask_dgpu.comm.protocol import Comm
from dask_dgpu.errors import CommError, GangError
from dask_dgpu.kernels.device import Device
from dask_dgpu.operations import OPERATIONS
from dask_dgpu.operations.value import Blocks, Collective, Local, Value, conforming
from dask_dgpu.runtime.observer import Observer
from dask_dgpu.runtime.plans import Plans
from dask_dgpu.runtime.program import Key, Program
from dask_dgpu.runtime.ship import ship
from graph_opt.model.layout import Index, label

Array = Any

NUMPY = "numpy.ndarray"
IGNORE = Observer()


def execute(
    program: Program,
    fixed: Plans,
    comm: Comm,
    device: Device,
    values: dict[str, Blocks],
    observer: Observer = IGNORE,
) -> dict[Key, Array]:
    """Run a program as one rank; return its blocks of the results, by value and place.

    ``values`` has this rank's blocks of the inputs; they are consumed. A block is freed after its
    last use. When this returns, the host has waited for the device.

    Work runs on the compute lane unless a step says otherwise. Both lanes wait for each other after
    each step, so a step may read blocks of either lane, and either lane may reuse freed memory.
    """
    device.begin()
    _borrow(values, device)
    known = dict(program.inputs) | {step.output: step.result for step in program.steps}
    with device.computing():
        for step, ending, spent in zip(program.steps, program.ends, program.spent, strict=True):
            name = label(step.output)
            with observer.step(name, _action(step)) as span, device.named(name):
                if isinstance(step, Local):
                    made = _made(step, program, fixed, comm, device, values, observer)
                else:
                    made = _computed(step, fixed, comm, device, values, known, spent, observer)
                span.nbytes = sum(getattr(block, "nbytes", 0) for block in made.values())
            values[step.output] = made
            del made
            for name in ending:
                del values[name]
        device.synchronize()
        comm.check()
        mine = [key for key, rank in fixed.placed().items() if rank == comm.rank]
        results = {
            key: _outside(values[key[0]][key[1:]], known[key[0]].container, device) for key in mine
        }
    return {key: device.hand_over(block) for key, block in results.items()}


def _borrow(values: Mapping[str, Blocks], device: Device) -> None:
    """Keep the inputs allocated until the lanes have passed their last use, views included."""
    for blocks in values.values():
        for index, block in blocks.items():
            blocks[index] = device.borrow(block)


def _action(step: Local | Collective) -> str:
    moves = isinstance(step, Collective) and step.operation == "rechunk"
    return "transfer" if moves else "compute"


def _computed(
    step: Collective,
    fixed: Plans,
    comm: Comm,
    device: Device,
    values: Mapping[str, Blocks],
    known: Mapping[str, Value],
    spent: Collection[str],
    observer: Observer,
) -> Blocks:
    """Run a collective on blocks in the device's memory that match the graph's declaration."""
    name = label(step.output)
    inputs = []
    for read in step.inputs:
        _conform(label(read), known[read], values[read], device)
        layout = fixed.values[read].layout
        # a block that several ranks have computed belongs to the first of them
        inputs.append({i: b for i, b in values[read].items() if layout.owner(i) == comm.rank})

    for read in spent:
        values[read].clear()  # so that the algorithm's references are the only ones

    def progress(done: int, steps: int) -> None:
        observer.progress(name, done, steps)

    run = OPERATIONS[step.operation].run
    made = run(fixed.collectives[step.output], comm, device, *inputs, progress=progress)
    device.join()  # before the inputs are freed
    return made


def _conform(name: str, value: Value, held: Blocks, device: Device) -> None:
    """Convert blocks to the graph's declaration, in the device's memory."""
    was = dict(held)
    for index, block in was.items():
        declared = name, value.dtype, value.block_shape(index), _container(block, value, device)
        held[index] = device.to_device(conforming(block, *declared))
    if any(held[index] is not block for index, block in was.items()):
        device.join()  # before the originals are freed


def _container(block: Array, value: Value, device: Device) -> str:
    """Return the expected type of a block: a collective's result may be on the device."""
    on_device = device.kind == "cuda" and type(block).__module__.startswith("cupy")
    return "cupy.ndarray" if on_device else value.container


def _made(
    step: Local,
    program: Program,
    fixed: Plans,
    comm: Comm,
    device: Device,
    values: Mapping[str, Blocks],
    observer: Observer,
) -> Blocks:
    """Run the block functions of a step for the blocks of this rank."""
    name = label(step.output)
    observer.progress(name, 0, len(step.needs))
    making = fixed.makings[step.output]
    numbers = [fixed.numbers[name] for name in step.inputs]
    mapped = {number: values[name] for number, name in zip(numbers, step.inputs, strict=True)}
    received = ship(making.shipments, comm, device, mapped)
    needs = step.blocks()
    container = step.result.container
    mine = [index for index, ranks in making.ranks.items() if comm.rank in ranks]
    tasks = program.blockworks.tasks(step.output, mine)

    done: list[tuple[int, ...]] = []

    def block(number: int, place: Index) -> Array:
        sent = (number, place) in received
        found = received[number, place] if sent else mapped[number][place]
        return _outside(found, container, device)

    def arguments(index: Index) -> dict[Key, Array]:
        return {(step.inputs[at], *place): block(numbers[at], place) for at, place in needs[index]}

    def make(index: tuple[int, ...]) -> Array:
        given = arguments(index)
        try:
            with observer.calling():
                made = tasks[index](given)
        except CommError as error:  # from a gang within the function: this gang lost no rank
            raise GangError(f"{type(error).__name__}: {error}") from error
        done.append(index)
        observer.progress(name, len(done), len(mine))
        return made

    made = dict(zip(mine, device.each(make, mine), strict=True))
    device.join()  # before the received blocks are freed
    return made


def _outside(block: Array, container: str, device: Device) -> Array:
    """Return a block in the container that its block function expects."""
    on_device = device.kind == "cuda" and type(block).__module__.startswith("cupy")
    return device.to_host(block) if on_device and container == NUMPY else block
