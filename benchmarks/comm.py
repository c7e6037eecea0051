"""The transports beside each other: a tiny all-reduce, and an all-to-all that fills the links.

Bare processes without Dask, one per GPU where there are any. Which transports are
compared depends on what is installed: TCP, Dask's and UCX on CPUs, NCCL and UCX on GPUs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from harness import Report
from link_server import this_server
from process_harness import blas_threads, processes
from relay import Relay, join_relay

from dask_dgpu.comm import bootstrap
from dask_dgpu.comm.common import even_counts, exchange_now
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.environment.gpus import count_gpus

HOST = "127.0.0.1"
RESULTS = Path(__file__).parent / "results"
TIMEOUT = 60.0
CALLS = 100
"""Tiny calls are timed so many at a time."""


def transports(device: str) -> list[bootstrap.Transport]:
    """Return those that carry arrays of the device and are installed."""
    found: list[bootstrap.Transport] = ["nccl"] if device == "cuda" else ["tcp", "dask"]
    return [*found, "ucx"] if find_spec("ucxx") is not None else found


def measure(
    rank: int,
    pipe: Connection,
    transport: bootstrap.Transport,
    relay: str,
    given: argparse.Namespace,
) -> None:
    """Send the seconds of each repetition of each figure."""
    xp: Any = import_module("cupy" if given.device == "cuda" else "numpy")
    if given.device == "cuda":
        xp.cuda.Device(rank).use()
    comm = bootstrap.connect(
        transport,
        host=HOST,
        store=join_relay(relay, transport),
        rank=rank,
        size=given.ranks,
        timeout=TIMEOUT,
        device=rank if given.device == "cuda" else None,
        streams=this_server().streams(transport) if transport == "dask" else None,
    )
    tiny = xp.zeros(1)
    whole = xp.ones(given.mib * 2**20, "uint8")
    counts = [even_counts(whole.size, given.ranks)] * given.ranks
    came = [sent[rank] for sent in counts]
    out = xp.empty(sum(came), "uint8")

    def all_reduce() -> None:
        for _ in range(CALLS):
            comm.all_reduce(tiny).wait()

    def all_to_all() -> None:
        exchange_now(comm, whole, counts[rank], out, came)

    for call in (all_reduce, all_to_all):
        pipe.send([_timed(comm, call, given.device) for _ in range(1 + given.repetitions)][1:])
    pipe.recv()
    comm.close()


def _timed(comm: Comm, call: Callable[[], None], device: str) -> float:
    comm.barrier()
    start = time.perf_counter()
    call()
    if device == "cuda":
        import cupy

        cupy.cuda.get_current_stream().synchronize()
    return time.perf_counter() - start


def compare(report: Report, given: argparse.Namespace) -> None:
    """Measure every transport; a repetition takes as long as on its slowest rank."""
    relay = Relay()
    usual: dict[str, float] = {}
    sent = given.mib * 2**20 - even_counts(given.mib * 2**20, given.ranks)[0]
    for transport in transports(given.device):
        arguments = (transport, relay.address, given)
        with (
            report.guard("connect", transport=transport),
            blas_threads(1),
            processes(given.ranks, measure, arguments) as pipes,
        ):
            for what, calls, nbytes in (
                ("all-reduce of 8 bytes", CALLS, 8),
                ("all-to-all", 1, sent),
            ):
                times = [pipe.recv() for pipe in pipes]
                seconds = [max(turn) / calls for turn in zip(*times, strict=True)]
                usual.setdefault(what, median(seconds))
                report.add(
                    what,
                    seconds,
                    ratio=median(seconds) / usual[what],
                    transport=transport,
                    bytes_sent=nbytes,
                    gigabytes_per_second=nbytes / median(seconds) / 1e9,
                )
            for pipe in pipes:
                pipe.send("all are done")


def main() -> None:
    """Run all and print a table."""
    gpus = count_gpus()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if gpus else "cpu")
    parser.add_argument("--ranks", type=int, help="by default 4, or one per GPU")
    parser.add_argument("--mib", type=int, help="of each rank; by default 16, or 256 on GPUs")
    parser.add_argument("--repetitions", type=int, default=11, help="after one to warm up")
    parser.add_argument("--out", type=Path, help="where JSON lines are appended")
    given = parser.parse_args()
    on_gpus = given.device == "cuda"
    given.ranks = given.ranks or (gpus if on_gpus else 4)
    given.mib = given.mib or (256 if on_gpus else 16)
    report = Report(given.out or RESULTS / f"comm-{given.device}.jsonl", given.ranks)
    compare(report, given)
    report.print()


if __name__ == "__main__":
    main()
