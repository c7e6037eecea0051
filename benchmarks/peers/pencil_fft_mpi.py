"""The transform of ``pencil_fft.py`` by mpi4py-fft, which that script starts with mpiexec.

Rank 0 prints the seconds of each repetition, those of the slowest rank, as JSON. Planning
is not counted.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import metadata

import numpy as np
from mpi4py import MPI
from mpi4py_fft import PFFT, newDistArray


def main(n: int, repetitions: int) -> None:
    """Transform fresh numbers; the first time is not counted."""
    comm = MPI.COMM_WORLD
    plan = PFFT(comm, (n, n), dtype=np.complex128)
    source, target = newDistArray(plan, False), newDistArray(plan, True)
    rng = np.random.default_rng(comm.rank)
    seconds = []
    for _ in range(1 + repetitions):
        source[...] = rng.random(source.shape) + 1j * rng.random(source.shape)
        comm.Barrier()
        start = time.perf_counter()
        plan.forward(source, target, normalize=False)
        seconds.append(comm.allreduce(time.perf_counter() - start, MPI.MAX))
    if comm.rank == 0:
        version = metadata.version("mpi4py-fft")
        print(json.dumps({"seconds": seconds[1:], "mpi4py_fft": version}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
