"""Predicted scaling to 64 hosts of 8 ranks: a product, a transform and a stencil.

Nothing runs: plans are made and predicted by the cost model, with a model of links. What they send
between hosts is counted from the plans. Times are those of the processor for a plan.
"""

from __future__ import annotations

import argparse
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from harness import Report, options

from dask_dgpu.algorithms.halo.plan import traffic as halo_traffic
from dask_dgpu.algorithms.pencil_fft.plan import plan_pencil_fft
from dask_dgpu.algorithms.pencil_fft.rank import RankedPencil
from dask_dgpu.algorithms.redistribute.plan import traffic as move_traffic
from dask_dgpu.algorithms.stencil.plan import StencilTask, even_tiles
from dask_dgpu.algorithms.summa.plan import SummaPlan
from dask_dgpu.kernels.fft import Transform
from dask_dgpu.kernels.stencil import Taps
from dask_dgpu.operations import OPERATIONS
from dask_dgpu.operations.operation import Placed, Request, Value
from graph_opt.model.cost import HOST, Machine, between_hosts, host_by_rank
from graph_opt.model.layout import Layout, cuts_of

OUT = Path(__file__).parent / "results" / "hosts-model.jsonl"
RANKS = 8
HOSTS = (1, 2, 4, 8, 16, 32, 64)

LINKS = replace(
    HOST,
    flops=5e10,  # of one rank: four cores
    bandwidth=4e9,
    memory_bandwidth=1e10,
    latency=2e-3,
    host_bandwidth=1.25e9,  # 10 Gbit/s
)
"""The model of a host: eight ranks of four cores, linked to others at 10 Gbit/s."""

LAPLACIAN = np.array([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]])


@dataclass(frozen=True)
class Case:
    """An operation, its request on some hosts, and its bytes between ranks."""

    name: str
    operation: str
    request: Callable[[Machine, int], Request]
    traffic: Callable[[Any], Any]


def _mesh(size: int) -> tuple[int, int]:
    """Return the most square mesh of ranks."""
    rows = next(n for n in range(int(size**0.5), 0, -1) if size % n == 0)
    return rows, size // rows


def _request(
    layouts: list[Layout], dtype: str, task: Any, machine: Machine, size: int, cuts: Any = None
) -> Request:
    inputs = tuple(Placed(layout, dtype) for layout in layouts)
    result = Value(cuts or layouts[0].cuts, dtype)
    return Request(inputs, result, task, size, machine, None)


def product(n: int) -> Case:
    """Return the product of two square matrices of float64, in a block a rank.

    Parameters
    ----------
    n : int
        Their side.

    Returns
    -------
    Case
        The case.
    """

    def request(machine: Machine, size: int) -> Request:
        layout = even_tiles((n, n), _mesh(size))
        rows, columns = map(range, layout.grid)
        return _request([layout, layout], "float64", (rows, columns, None, None), machine, size)

    def traffic(part: Any) -> Any:
        plan: SummaPlan = part.plan
        found = np.zeros((plan.size, plan.size), np.int64)
        _, moves = plan.moves
        some = (moves.source != moves.target) & (moves.passed == 0)
        np.add.at(found, (moves.source[some], moves.target[some]), moves.nbytes[some])
        return found

    return Case(f"product of {n} x {n} float64", "matmul", request, traffic)


def transform(n: int) -> Case:
    """Return the transform of a square array of complex128 along both axes, in rows of blocks.

    Parameters
    ----------
    n : int
        Its side.

    Returns
    -------
    Case
        The case.
    """

    def request(machine: Machine, size: int) -> Request:
        layout = even_tiles((n, n), (size, 1))
        chunks = tuple(map(tuple, layout.lengths))
        each = [Transform("fft", axis, n, "backward") for axis in (1, 0)]
        plan = plan_pencil_fft(chunks, "complex128", each, ranks=size)
        cuts = tuple(map(cuts_of, plan.output_chunks))
        whole = (plan, (0, 0), (0, 0))
        return _request([layout], "complex128", whole, machine, size, cuts)

    def traffic(part: Any) -> Any:
        plan: RankedPencil = part.ranked
        return sum(move_traffic(move) for move in plan.moves if move is not None)

    return Case(f"transform of {n} x {n} complex128", "fft", request, traffic)


def stencil(n: int, iterations: int) -> Case:
    """Return sweeps of a five-point stencil over a square array of float64.

    Parameters
    ----------
    n : int
        Its side.
    iterations : int
        The number of sweeps.

    Returns
    -------
    Case
        The case.
    """
    task = StencilTask("float64", Taps.of(LAPLACIAN), ("periodic",) * 2, iterations)

    def request(machine: Machine, size: int) -> Request:
        return _request([even_tiles((n, n), _mesh(size))], "float64", task, machine, size)

    def traffic(sweeps: Any) -> Any:
        return halo_traffic(sweeps.halo) * -(-iterations // sweeps.steps)

    return Case(f"{iterations} sweeps over {n} x {n} float64", "stencil", request, traffic)


def measure(report: Report, case: Case, hosts: int) -> None:
    """Plan a case on some hosts, and write what is predicted.

    Parameters
    ----------
    report : Report
        Where the figures go.
    case : Case
        The case.
    hosts : int
        Their number.
    """
    size = hosts * RANKS
    machine = replace(LINKS, hosts=(RANKS,) * hosts if hosts > 1 else ())
    operation, request = OPERATIONS[case.operation], case.request(machine, size)
    start = time.process_time()
    plan = operation.plan(request)
    planned = time.process_time() - start
    cost = operation.cost(plan, machine)
    entering: Any = np.zeros(1)
    if hosts > 1:
        crossing = between_hosts(case.traffic(plan), machine.hosts).sum(axis=0)
        entering = np.bincount(host_by_rank(machine.hosts), crossing)
    report.add(
        case.name,
        [planned],
        hosts=hosts,
        ranks=size,
        predicted_s=cost.seconds,
        link_bytes=int(entering.max()),
        plan_bytes=len(pickle.dumps(plan)),
        text=cost.text,
    )


def table(lines: list[dict[str, Any]]) -> str:
    """Return the predicted figures as tables in Markdown, one per case.

    Parameters
    ----------
    lines : list of dict
        What :func:`measure` wrote.

    Returns
    -------
    str
        The tables.
    """
    text: list[str] = []
    for line in lines:
        first = lines[[each["what"] for each in lines].index(line["what"])]
        if line is first:
            text += ["", f"{line['what'][0].upper()}{line['what'][1:]}:"]
            text += ["", "| hosts | ranks | seconds | faster | into a host, GB | plan, bytes |"]
            text += ["|---:|---:|---:|---:|---:|---:|"]
        faster = first["predicted_s"] / line["predicted_s"]
        text.append(
            f"| {line['hosts']} | {line['ranks']} | {line['predicted_s']:.3g} | {faster:.1f} "
            f"| {line['link_bytes'] / 1e9:.3g} | {line['plan_bytes']} |"
        )
    return "\n".join(text).strip()


def main() -> None:
    """Predict all cases on all numbers of hosts."""
    given: argparse.Namespace = options(__doc__, OUT).parse_args()
    sides = (512, 512, 512) if given.quick else (100_000, 65_536, 65_536)
    cases = [product(sides[0]), transform(sides[1]), stencil(sides[2], 1000)]
    report = Report(given.out, RANKS * HOSTS[-1])
    for case in cases:
        for hosts in HOSTS[:2] if given.quick else HOSTS:
            measure(report, case, hosts)
    report.print()
    print(table(report.rows))


if __name__ == "__main__":
    main()
