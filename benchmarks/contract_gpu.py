"""Contractions and convolutions: batched products, einsum, tensordot, conv2d.

One process a GPU, blocks born on the GPUs. ``--device cpu`` runs the same code on
NumPy blocks. Beside them: one device alone with a share of the same work.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import dask.array as da
from gpu_harness import GpuBench, options, run
from harness import fresh, no_wait
from worker_harness import synchronize

import dask_dgpu as dgpu

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """One computation.

    Parameters
    ----------
    name : str
        Of the figures.
    shapes, chunks : tuple of tuple of int
        Of the operands.
    function : callable
        Makes a Dask array of the operands.
    alone : str or None
        What one device computes with its share of the first operand's first axis that is longer
        than 1: ``"matmul"`` or ``"conv2d"``.
    """

    name: str
    shapes: tuple[Shape, Shape]
    chunks: tuple[Shape, Shape]
    function: Callable[..., da.Array]
    alone: str | None = None

    def share(self, ranks: int) -> tuple[Shape, Shape]:
        """Return the shapes of one device's share."""
        left, right = self.shapes
        if self.alone == "matmul":
            return (left[0] // ranks, *left[1:]), (right[0] // ranks, *right[1:])
        axis = 0 if left[0] > 1 else 2
        cut = tuple(n // ranks if at == axis else n for at, n in enumerate(left))
        return cut, right


def cases(given: argparse.Namespace) -> list[Case]:
    """Return the computations for these sizes."""
    n, batch, images, side = given.n, given.batch, given.images, given.side
    small, large, planes = n // 4, n // 2, given.planes
    square = (n, n), (n, n)
    blocks = (n // 4, n // 4), (n // 4, n // 4)
    inner = given.inner
    return [
        Case(
            "batched product",
            ((batch, small, small), (batch, small, small)),
            ((batch // 8, small, small), (batch // 8, small, small)),
            da.matmul,
            "matmul",
        ),
        Case("da.matmul", square, blocks, da.matmul),
        Case("einsum ij,jk->ik", square, blocks, lambda a, b: da.einsum("ij,jk->ik", a, b)),
        Case("da.matmul as tensordot", ((large, inner**2), (inner**2, large)), blocks, da.matmul),
        Case(
            "tensordot",
            ((large, inner, inner), (inner, inner, large)),
            ((small // 2, inner, inner), (inner, inner, small // 2)),
            lambda a, b: da.tensordot(a, b, axes=((1, 2), (0, 1))),
        ),
        Case(
            "conv2d of images",
            ((images, 64, given.pixels, given.pixels), (64, 64, 3, 3)),
            ((images // 8, 64, given.pixels, given.pixels), (64, 64, 3, 3)),
            lambda x, w: dgpu.conv2d(x, w, padding=1),
            "conv2d",
        ),
        Case(
            "conv2d of one image",
            ((1, planes, side, side), (planes, planes, 3, 3)),
            ((1, planes, side // 4, side // 2), (planes, planes, 3, 3)),
            lambda x, w: dgpu.conv2d(x, w, padding=1),
            "conv2d",
        ),
    ]


class Bench(GpuBench):
    """The figures of contractions and convolutions on one cluster."""

    def run(self) -> None:
        """Take all figures."""
        with self.report.guard("no-op on every worker"):
            self.no_op()
        ranks = len(self.workers())
        for case in cases(self.given):
            facts: dict[str, Any] = {"dtype": "float32", "case": case.name, "shapes": case.shapes}
            best = None
            with self.report.guard("one device's share", **facts):
                if case.alone:
                    share = self.client.run(alone, case.alone, *case.share(ranks))
                    best = median(share.values())
                    self.report.add("one device's share", [best], **facts)
            with self.report.guard("end to end, dask_dgpu", **facts):
                note = partial(transfers, case.function)
                found = self.uses("", self.operands(case), case.function, note, **facts)
                if found.slowest:
                    ratio = best / median(found.slowest) if best else None
                    hidden, exposed = zip(*found.noted[1:], strict=True)
                    more = {"hidden": hidden, "exposed": exposed, "rate_of_one_device": ratio}
                    self.rank_program("", found, **more, **facts)
            if self.given.plain_repetitions:
                with self.report.guard("end to end, dask", **facts):
                    self.plain("", self.operands(case), case.function, **facts)

    def operands(self, case: Case) -> Callable[[], tuple[da.Array, ...]]:
        """Return a function that makes new operands of a case."""

        def make() -> tuple[da.Array, ...]:
            pairs = zip(case.shapes, case.chunks, strict=True)
            return tuple(fresh(shape, chunks, "float32") for shape, chunks in pairs)

        return make


def transfers(
    function: Callable[..., da.Array], operands: tuple[da.Array, ...], result: da.Array
) -> tuple[float, float]:
    """Return the hidden and the exposed seconds of the last computation's transfers."""
    regions = dgpu.explain(function(*operands), measured=True).to_dict()["regions"]
    hidden, exposed = (
        sum(seconds or 0.0 for region in regions for seconds in region[name])
        for name in ("hidden", "exposed")
    )
    return hidden, exposed


def alone(work: str, left: Shape, right: Shape) -> float:
    """Return the seconds that this process takes for a share, without Dask."""
    import torch

    cuda = torch.cuda.is_available()
    where = "cuda" if cuda else "cpu"
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    a, b = (torch.rand(*shape, device=where) for shape in (left, right))
    seconds = []
    for _ in range(5):
        wait_for = synchronize if cuda else no_wait
        wait_for()
        start = time.perf_counter()
        if work == "matmul":
            torch.matmul(a, b)
        else:
            torch.nn.functional.conv2d(a, b, padding=1)
        wait_for()
        seconds.append(time.perf_counter() - start)
    del a, b
    if cuda:
        torch.cuda.empty_cache()
    return median(seconds[1:])


def main() -> None:
    """Run all and print a table."""
    parser = options(__doc__)
    parser.add_argument("--n", type=int, default=16384, help="side of square matrices")
    parser.add_argument("--batch", type=int, default=64, help="matrices of side n / 4")
    parser.add_argument("--inner", type=int, default=128, help="each of two contracted axes")
    parser.add_argument("--images", type=int, default=64, help="of 64 channels")
    parser.add_argument("--pixels", type=int, default=512, help="side of these images")
    parser.add_argument("--planes", type=int, default=16, help="channels of the one large image")
    parser.add_argument("--side", type=int, default=16384, help="of the one large image")
    run(Bench, "contract", parser.parse_args())


if __name__ == "__main__":
    main()
