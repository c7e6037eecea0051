"""Jacobi's iteration on the same GPUs by hand: torch, NCCL and one Triton kernel a sweep.

One process a GPU, each of which has a slab of rows and exchanges its edges with both
neighbours before each sweep. Run it by itself, with nothing else on the GPUs:
``python benchmarks/peers/halo_torch.py``. With ``--device cpu`` it goes by gloo and
torch's expressions, to try it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

sys.path.insert(0, str(Path(__file__).parents[1]))

from halo_harness import jacobis_case
from harness import Report

RESULTS = Path(__file__).parents[1] / "results"
BACKENDS = {"cuda": "nccl", "cpu": "gloo"}
BLOCK = 1024
"""Elements of a row that one program of the kernel makes."""

Tensor = Any


def exchange(u: Tensor, rank: int, ranks: int) -> None:
    """Fill the ghost rows of a slab with the edges of its neighbours."""
    sides = [(rank - 1, u[1], u[0]), (rank + 1, u[-2], u[-1])]
    calls = [
        dist.P2POp(operation, row, peer)
        for peer, edge, ghost in sides
        if 0 <= peer < ranks
        for operation, row in ((dist.isend, edge), (dist.irecv, ghost))
    ]
    for work in dist.batch_isend_irecv(calls) if calls else ():
        work.wait()


def sweep(u: Tensor, out: Tensor, rhs: Tensor) -> None:
    """Write the next iterate."""
    rows, n = rhs.shape
    if u.is_cuda:
        from halo_triton import sweep_kernel

        sweep_kernel[rows, -(-n // BLOCK)](u, out, rhs, n, BLOCK=BLOCK)
        return
    around = u[:-2] + u[2:] - rhs
    around[:, 1:] += u[1:-1, :-1]
    around[:, :-1] += u[1:-1, 1:]
    out[1:-1] = 0.25 * around


def run_rank(rank: int, ranks: int, store: str, given: argparse.Namespace) -> None:
    """Iterate on a slab, again and again; the first rank writes the figure."""
    cuda = given.device == "cuda"
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group(
        BACKENDS[given.device],
        init_method=f"file://{store}",
        rank=rank,
        world_size=ranks,
        device_id=device if cuda else None,
    )
    n, iterations, rows = given.n, given.iterations, given.n // ranks
    (along, across), rhs_factor, last = jacobis_case((rows * ranks, n), iterations)
    mine = along[rank * rows : (rank + 1) * rows]
    first = torch.outer(*(torch.as_tensor(f, device=device).float() for f in (mine, across)))
    rhs = first * rhs_factor
    u, other = (torch.zeros(rows + 2, n, device=device) for _ in range(2))

    def agreed(value: float) -> float:
        """Return the largest value of all ranks, once all have come so far."""
        found = torch.tensor([value], device=device, dtype=torch.float64)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return float(found.item())

    seconds = []
    for _ in range(1 + given.repetitions):
        u[1:-1], u[0], u[-1] = first, 0, 0
        agreed(0.0)
        start = time.perf_counter()
        for _ in range(iterations):
            exchange(u, rank, ranks)
            sweep(u, other, rhs)
            u, other = other, u
        if cuda:
            torch.cuda.synchronize()
        seconds.append(agreed(time.perf_counter() - start))
    error = agreed(float((u[1:-1] - last * first).abs().max()))
    error /= agreed(float((last * first).abs().max()))
    if rank == 0:
        report = Report(given.out, ranks)
        report.add(
            "jacobi, torch",
            seconds[1:],
            n=n,
            chunk=rows,
            dtype="float32",
            workers=ranks,
            iterations=iterations,
            iteration_us=median(seconds[1:]) / iterations * 1e6,
            error_relative=error,
        )
        report.print()
    dist.destroy_process_group()


def main() -> None:
    """Start a process for each GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=tuple(BACKENDS), default="cuda")
    parser.add_argument("--n", type=int, default=32768, help="side of the grid")
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "halo-gpu-peers.jsonl")
    given = parser.parse_args()
    ranks = torch.cuda.device_count() if given.device == "cuda" else 4
    with tempfile.TemporaryDirectory() as folder:
        arguments = (ranks, f"{folder}/store", given)
        spawn(run_rank, args=arguments, nprocs=ranks)


if __name__ == "__main__":
    main()
