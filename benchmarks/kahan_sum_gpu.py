"""Sums on GPUs: of the blocks where they are, beside torch's plain sum, and end to end."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import dask
import dask.array as da
from distributed import wait
from gpu_harness import GpuBench, options, run
from harness import PLAIN, finished

import dask_dgpu as dgpu

COLUMNS, WIDTH = 16, 512
KERNELS = ("torch", "dask", "compensated", "reproducible")
WAYS: dict[str, Callable[[da.Array, Any], da.Array]] = {
    "dask": lambda x, axis: da.sum(x, axis),
    "compensated": dgpu.sum,
    "reproducible": lambda x, axis: dgpu.sum(x, axis, method="reproducible"),
}


def sum_blocks(blocks: list[Any], axis: int, way: str, repetitions: int) -> list[float]:
    """Return the seconds of each sum of some blocks, on the worker that holds them.

    ``torch`` and ``dask`` sum in the blocks' own precision; the latter as the blocks do.
    """
    import torch

    from dask_dgpu.kernels.sums import binned, compensated

    tensors = [torch.as_tensor(block) for block in blocks]
    cuda = tensors[0].is_cuda
    functions: dict[str, Callable[[], Any]] = {
        "torch": lambda: [tensor.sum(axis) for tensor in tensors],
        "dask": lambda: [block.sum(axis) for block in blocks],
        "compensated": lambda: [compensated.block_sum(block, (axis,)) for block in blocks],
        "reproducible": lambda: [binned.block_sum(block, (axis,)) for block in blocks],
    }
    seconds = []
    for _ in range(1 + repetitions):
        if cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        functions[way]()
        if cuda:
            import cupy

            cupy.cuda.Device().synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


class KahanSumBench(GpuBench):
    """The figures of sums; see :class:`GpuBench`."""

    def run(self) -> None:
        """Take all figures, of one axis and of either of two, and those of doubles' blocks."""
        self.no_op()
        values = len(self.workers()) * self.given.values
        shapes = ((values,), None), ((values // COLUMNS, COLUMNS), 0), ((values // WIDTH, WIDTH), 1)
        for shape, axis in shapes:
            facts = {"shape": list(shape), "axis": axis, "dtype": "float32"}
            with self.report.guard("sums", **facts):
                self.where_blocks_are(self.numbers(shape), axis, facts)
                self.end_to_end(shape, axis, facts)
            shape = (shape[0] // 2, *shape[1:])
            facts = {"shape": list(shape), "axis": axis, "dtype": "float64"}
            with self.report.guard("sums", **facts):
                self.where_blocks_are(self.numbers(shape, "float64"), axis, facts)

    def numbers(self, shape: tuple[int, ...], dtype: str = "float32") -> da.Array:
        """Return random numbers, two blocks a worker, that no task has seen yet."""
        chunks = (-(-shape[0] // (2 * len(self.workers()))), *shape[1:])
        rng = da.random.default_rng(time.time_ns() % 2**31)
        return finished(rng.random(shape, chunks=chunks, dtype=dtype).persist())

    def where_blocks_are(self, x: da.Array, axis: Any, facts: dict[str, Any]) -> None:
        """Sum blocks on their workers, all at once; the slowest counts, beside torch's."""
        held: dict[str, list[Any]] = {}
        for key, workers in self.client.who_has(x).items():
            held.setdefault(workers[0], []).append(key)
        futures = {future.key: future for future in x.__dask_graph__().values()}
        medians: dict[str, float] = {}
        for way in KERNELS:
            found = []
            for worker, keys in held.items():
                blocks = [futures[key] for key in futures if str(key) in map(str, keys)]
                arguments = (blocks, axis or 0, way, self.given.repetitions)
                found.append(
                    self.client.submit(sum_blocks, *arguments, workers=[worker], pure=False)
                )
            slowest = [max(times) for times in zip(*self.client.gather(found), strict=True)]
            medians[way] = median(slowest)
            rate = x.nbytes / len(held) / medians[way] / 1e9
            ratio = medians[way] / medians["torch"]
            more = {**facts, "gbytes_a_second": rate}
            self.report.add(f"blocks where they are, {way}", slowest, ratio=ratio, **more)

    def end_to_end(self, shape: tuple[int, ...], axis: Any, facts: dict[str, Any]) -> None:
        """Sum arrays from the call to the last block, each way in turn."""
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(1 + self.given.repetitions):
            x = self.numbers(shape)
            for way, function in WAYS.items():
                with dask.config.set(array_optimize=PLAIN if way == "dask" else self.gang):
                    start = time.perf_counter()
                    result = function(x, axis).persist()
                    wait(result)
                    self.client.run(self.synchronize)
                    seconds[way].append(time.perf_counter() - start)
                finished(result)
        plain = median(seconds["dask"][1:])
        for way, times in seconds.items():
            ratio = median(times[1:]) / plain
            more = {**facts, "no_op_ms": self.round_trip * 1e3}
            self.report.add(f"end to end, {way}", times[1:], ratio=ratio, first=times[0], **more)


def main() -> None:
    """Run all and print a table."""
    parser = options(__doc__)
    parser.add_argument(
        "--values", type=int, default=1 << 31, help="float32 numbers of a GPU; half as many doubles"
    )
    run(KahanSumBench, "kahan_sum", parser.parse_args())


if __name__ == "__main__":
    main()
