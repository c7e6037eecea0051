"""``dgpu.conv2d`` without GPUs: many images and a large one, beside torch in one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import dask.array as da
import numpy as np
import torch
from distributed import Client, LocalCluster
from harness import PLAIN, Report, finished, no_wait, options, timed
from process_harness import blas_threads, processes, run_ranks, slowest
from torch.nn import functional

import dask_dgpu as dgpu
from dask_dgpu.algorithms.conv2d.rank import conv2d_rank
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import HostDevice
from dask_dgpu.operations.conv2d import CONV2D
from dask_dgpu.operations.operation import Placed, Request, Value
from graph_opt.model.cost import HOST
from graph_opt.model.layout import Layout, cuts_of, dealt
from graph_opt.model.window import Convolution, Sliding

RANKS = 4
OUT = Path(__file__).parent / "results" / "conv2d-cpu.jsonl"
SAME = Convolution((Sliding(3, padding=(1, 1)), Sliding(3, padding=(1, 1))))

Shape = tuple[int, int, int, int]


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Parameters
    ----------
    images : tuple of (tuple of int, tuple of int)
        Shapes of images and of their chunks; as many channels come out.
    dtype : str
        Of the images.
    repetitions : int
        Of everything timed, after one that is not counted.
    """

    images: tuple[tuple[Shape, Shape], ...]
    dtype: str
    repetitions: int


MANY = (8, 16, 512, 512), (2, 16, 512, 512)
LARGE = (1, 16, 2048, 1024), (1, 16, 512, 1024)
FULL = Sizes(images=(MANY, LARGE), dtype="float32", repetitions=5)
QUICK = Sizes(
    images=(((4, 2, 16, 16), (1, 2, 16, 16)), ((1, 2, 32, 16), (1, 2, 8, 16))),
    dtype="float32",
    repetitions=1,
)


def kernels(channels: int, dtype: str) -> Any:
    """Return the weights of all ways."""
    return np.random.default_rng(1).random((channels, channels, 3, 3)).astype(dtype)


def torch_alone(sizes: Sizes, threads: int = 2) -> list[list[float]]:
    """Return the seconds of torch in one process, for all images."""
    with blas_threads(threads), processes(1, _convolve, (sizes,)) as pipes:
        found: list[list[float]] = pipes[0].recv()
    return found


def _convolve(rank: int, pipe: Connection, sizes: Sizes) -> None:
    pipe.send([_seconds_of_torch(shape, sizes) for shape, _ in sizes.images])


def _seconds_of_torch(shape: Shape, sizes: Sizes) -> list[float]:
    seconds = []
    weight = torch.from_numpy(kernels(shape[1], sizes.dtype))
    for seed in range(1 + sizes.repetitions):
        x = torch.from_numpy(np.random.default_rng(seed).random(shape).astype(sizes.dtype))
        start = time.perf_counter()
        functional.conv2d(x, weight, padding=1)
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def rank_program(sizes: Sizes) -> list[list[float]]:
    """Return the seconds of the gang's program in bare processes over TCP, for all images."""
    ranks = zip(*run_ranks(RANKS, _convolve_on_ranks, sizes), strict=True)
    return [slowest(list(seconds)) for seconds in ranks]


def _convolve_on_ranks(comm: Comm, sizes: Sizes) -> list[list[float]]:
    found, rank = [], comm.rank
    for shape, chunk in sizes.images:
        cuts = tuple(cuts_of([size] * (n // size)) for n, size in zip(shape, chunk, strict=True))
        blocks = int(np.prod([len(along) - 1 for along in cuts]))
        x = Layout(cuts, dealt(blocks, RANKS))
        weight = kernels(shape[1], sizes.dtype)
        single = Layout(tuple((0, n) for n in weight.shape), (0,))
        result = Value(SAME.result_cuts(cuts, shape[1]), sizes.dtype)
        inputs = tuple(Placed(layout, sizes.dtype) for layout in (x, single))
        plan = CONV2D.plan(Request(inputs, result, SAME, RANKS, HOST, None))
        rng, seconds = np.random.default_rng(rank), []
        for _ in range(1 + sizes.repetitions):
            mine = {index: rng.random(chunk).astype(sizes.dtype) for index in x.owned(rank)}
            comm.barrier()
            start = time.perf_counter()
            conv2d_rank(plan, comm, HostDevice(), mine, {} if rank else {(0,) * 4: weight})
            seconds.append(time.perf_counter() - start)
        found.append(seconds[1:])
    return found


def end_to_end(sizes: Sizes) -> list[dict[str, list[float]]]:
    """Return the seconds on a cluster, by Dask and by dask_dgpu in turn, for all images."""
    found = []
    with (
        LocalCluster(n_workers=RANKS, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        dgpu.enable(client, when="always", on_error="raise") as enabled,
    ):
        ways: dict[str, Callable[..., Any]] = {"dask": PLAIN, "dask_dgpu": enabled.optimizer}
        for shape, chunk in sizes.images:
            seconds: dict[str, list[float]] = {way: [] for way in ways}
            function = partial(dgpu.conv2d, weight=kernels(shape[1], sizes.dtype), padding="same")
            for _ in range(1 + sizes.repetitions):
                for way, optimizer in ways.items():
                    x = da.random.random(shape, chunks=chunk).astype(sizes.dtype).persist()
                    taken, result = timed(client, optimizer, function, (finished(x),), no_wait)
                    seconds[way].append(taken)
                    del x, result
            found.append({way: times[1:] for way, times in seconds.items()})
    return found


def main() -> None:
    """Run all and print a table."""
    given = options(__doc__, OUT).parse_args()
    sizes = QUICK if given.quick else FULL
    report = Report(given.out, RANKS)
    figures = zip(
        sizes.images, torch_alone(sizes), rank_program(sizes), end_to_end(sizes), strict=True
    )
    for (shape, chunk), alone, ranks, clusters in figures:
        ways = {"torch, one process": alone, "rank program": ranks}
        ways |= {f"end to end, {way}": seconds for way, seconds in clusters.items()}
        for what, seconds in ways.items():
            report.add(
                what,
                seconds,
                dtype=sizes.dtype,
                ratio=median(seconds) / median(alone),
                shape=shape,
                chunks=chunk,
            )
    report.print()


if __name__ == "__main__":
    main()
