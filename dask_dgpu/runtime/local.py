"""A gang in one process: ranks as threads, for schedulers without workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.kernels.device.host import HostDevice
from dask_dgpu.operations.value import Blocks
from dask_dgpu.runtime.execute import execute
from dask_dgpu.runtime.observer import Observer, Span
from dask_dgpu.runtime.plans import plans
from dask_dgpu.runtime.program import Key, Program
from graph_opt.model.layout import dealt

Array = Any


class Naming(Observer):
    """An observer that notes step and rank in errors."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    @contextmanager
    def step(self, name: str, action: str) -> Iterator[Span]:
        """Add the step and the rank to an error.

        Yields
        ------
        Span
            The step's.
        """
        try:
            with super().step(name, action) as span:
                yield span
        except Exception as error:
            error.add_note(f"in {name}, on rank {self.rank}")
            raise


def run_here(program: Program, staged: Sequence[list[Array]]) -> dict[Key, Array]:
    """Run a program on ``program.local_ranks`` threads; return all blocks of its results."""
    size = program.local_ranks
    owners: dict[str, tuple[int, ...]] = {}
    blocks: dict[str, Blocks] = {}
    for (name, value), given in zip(program.inputs, staged, strict=True):
        indices = value.indices()
        blocks[name] = dict(zip(indices, given, strict=True))
        owners[name] = dealt(len(indices), size)
    fixed = plans(program, owners, size)

    # the caller's context holds NumPy's reaction to overflow, for example
    contexts = [copy_context() for _ in range(size)]

    def rank_program(comm: Comm) -> dict[Key, Array]:
        mine = {
            name: {
                index: block
                for (index, block), owner in zip(values.items(), owners[name], strict=True)
                if owner == comm.rank
            }
            for name, values in blocks.items()
        }
        return execute(program, fixed, comm, _device(program), mine, Naming(comm.rank))

    result: dict[Key, Array] = {}
    for part in run_local(size, lambda comm: contexts[comm.rank].run(rank_program, comm)):
        result.update(part)
    return result


def _device(program: Program) -> Device:
    values = [value for _, value in program.inputs] + [step.result for step in program.steps]
    if any(value.container == "cupy.ndarray" for value in values):
        from dask_dgpu.kernels.device.cuda import CudaDevice

        return CudaDevice()
    return HostDevice()
