"""Variants of generated kernels on one GPU, to choose one: divisions, contraction, batches."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from fused_gpu import blocks_of
from fused_harness import SHAPE, cases, expression_of, seconds_each
from harness import Report

from dask_dgpu.kernels.fused import compile as compiling
from dask_dgpu.kernels.fused import cuda, elementwise, evaluate, onchip, reduce, reduce_shape


@contextmanager
def set_to(changes: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Have some constants of modules other values."""
    before = [(module, name, getattr(module, name)) for module, name, _ in changes]
    for module, name, value in changes:
        setattr(module, name, value)
    cuda._calls.cache_clear()
    compiling.kernel.cache_clear()
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def ieee(text: str) -> str:
    """Return a prelude with CUDA's division and root."""
    start, end = text.index("inline float np_divide"), text.index("inline double np_sqrt")
    text = (
        text[:start] + "inline float np_divide(float a, float b) { return a / b; }\n" + text[end:]
    )
    start = text.index("inline float np_sqrt")
    end = text.index("\n}\n", start) + 3
    return text[:start] + "inline float np_sqrt(float x) { return sqrt(x); }\n" + text[end:]


def divisions() -> dict[str, list[tuple[Any, str, Any]]]:
    """Return the variants of divisions and roots."""
    careful = [
        (elementwise, "SOURCE", elementwise.SOURCE.replace("all(Quick<true>{});", "plain = 0;"))
    ]
    modules = (elementwise, onchip, reduce)
    cuda_own = [(module, "PRELUDE", ieee(module.PRELUDE)) for module in modules]
    contracted = [(compiling, "OPTIONS", tuple(o for o in compiling.OPTIONS if "fmad" not in o))]
    return {
        "IEEE": careful + cuda_own,
        "careful": careful,
        "quick": [],
        "quick, contracted": contracted,
        "IEEE, contracted": careful + cuda_own + contracted,
    }


def batches() -> dict[str, list[tuple[Any, str, Any]]]:
    """Return the variants of batches and thread blocks of columns."""
    return {
        f"batch {batch}, resident {resident}": [
            (reduce_shape, "BATCH", batch),
            (reduce_shape, "RESIDENT", resident),
        ]
        for batch, resident in (
            (32, 4),
            (64, 4),
            (64, 3),
            (64, 2),
            (32, 3),
            (32, 5),
            (32, 6),
            (16, 6),
            (16, 8),
        )
    }


def main() -> None:
    """Run and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("fused-variants.jsonl"))
    given = parser.parse_args()
    import cupy

    report = Report(given.out, ranks=1)
    source = cupy.zeros(SHAPE, "float32")
    target = cupy.empty_like(source)
    copy: Callable[[], Any] = lambda: target.data.copy_from_device_async(source.data, source.nbytes)  # noqa: E731
    _, copied = seconds_each(copy, given.repetitions)
    report.add("device copy", copied)
    rate = 2 * source.nbytes / median(copied)
    known = cases()
    for names, variants in (
        (
            ("black_scholes", "softmax", "layer_norm", "standardise 0", "standardise 1", "gelu"),
            divisions(),
        ),
        (("std 0", "argmax 0", "mean 0", "std None", "standardise 0"), batches()),
    ):
        for name in names:
            blocks = blocks_of(known[name])
            expression = expression_of(known[name], blocks)
            for variant, changes in variants.items():
                with report.guard(name, way=variant), set_to(changes):
                    issue = partial(evaluate, expression, blocks)
                    first, found = seconds_each(issue, given.repetitions)
                    share = known[name].moved * source.nbytes / median(found) / rate
                    report.add(name, found, way=variant, share=share, first=first)
    report.print()


if __name__ == "__main__":
    main()
