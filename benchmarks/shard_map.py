"""Attention in a ring by ``dgpu.shard_map``, beside Dask's expression and NumPy."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster
from harness import PLAIN, Report, finished, no_wait, options, timed

import dask_dgpu as dgpu

RANKS = 4
OUT = Path(__file__).parent / "results" / "shard_map-cpu.jsonl"


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Parameters
    ----------
    rows, depth : int
        Shape of queries, keys and values, in single precision.
    repetitions : int
        Of everything timed, after one that is not counted.
    """

    rows: int
    depth: int
    repetitions: int


FULL = Sizes(rows=8192, depth=64, repetitions=5)
QUICK = Sizes(rows=64, depth=8, repetitions=1)


def ring(rows: int, comm: dgpu.ShardComm, q: Any, k: Any, v: Any) -> Any:
    """Return the attention of a rank's queries; keys and values go round."""
    depth, passing = k.shape[1], np.concatenate([k, v], axis=1)
    most = np.full((len(q), 1), -np.inf, q.dtype)
    total = result = np.zeros((), q.dtype)
    for step in range(comm.size):
        products = q @ passing[:, :depth].T
        higher = np.maximum(most, products.max(1, keepdims=True))
        powers, fade = np.exp(products - higher), np.exp(most - higher)
        total = total * fade + powers.sum(1, keepdims=True)
        result = result * fade + powers @ passing[:, depth:]
        most = higher
        lo, hi = comm.bounds(rows, (comm.rank - step - 1) % comm.size)
        passing = comm.shift(passing, shape=(hi - lo, 2 * depth))
    return result / total


def attention(q: Any, k: Any, v: Any) -> Any:
    """Return the attention by array code, for NumPy and Dask."""
    products = q @ k.T
    powers = np.exp(products - products.max(axis=1, keepdims=True))
    return powers @ v / powers.sum(axis=1, keepdims=True)


def by_ring(q: da.Array, k: da.Array, v: da.Array) -> da.Array:
    """Return the attention of a gang."""
    return dgpu.shard_map(partial(ring, len(q)), out=q)(q, k, v)


def alone(sizes: Sizes) -> list[float]:
    """Return the seconds of NumPy in this process."""
    seconds, rng = [], np.random.default_rng(0)
    for _ in range(1 + sizes.repetitions):
        given = [rng.random((sizes.rows, sizes.depth), np.float32) for _ in range(3)]
        start = time.perf_counter()
        attention(*given)
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def end_to_end(sizes: Sizes) -> dict[str, list[float]]:
    """Return the seconds on a cluster, each way in turn."""
    with (
        LocalCluster(n_workers=RANKS, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        dgpu.enable(client, on_error="raise") as enabled,
    ):
        ways: dict[str, Any] = {
            "dask": (PLAIN, attention),
            "dask_dgpu": (enabled.optimizer, attention),
            "shard_map": (enabled.optimizer, by_ring),
        }
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        shape, chunks = (sizes.rows, sizes.depth), (sizes.rows // RANKS, sizes.depth)
        for _ in range(1 + sizes.repetitions):
            for way, (optimizer, function) in ways.items():
                given = tuple(
                    finished(da.random.random(shape, chunks=chunks).astype("f4").persist())
                    for _ in range(3)
                )
                taken, result = timed(client, optimizer, function, given, no_wait)
                seconds[way].append(taken)
                del given, result
    return {way: times[1:] for way, times in seconds.items()}


def main() -> None:
    """Run all and print a table."""
    given = options(__doc__, OUT).parse_args()
    sizes = QUICK if given.quick else FULL
    report = Report(given.out, RANKS)
    figures = {"NumPy, one process": alone(sizes)}
    figures |= {f"end to end, {way}": times for way, times in end_to_end(sizes).items()}
    first = median(figures["NumPy, one process"])
    for what, times in figures.items():
        ratio = median(times) / first
        report.add(what, times, dtype="float32", ratio=ratio, shape=(sizes.rows, sizes.depth))
    report.print()


if __name__ == "__main__":
    main()
