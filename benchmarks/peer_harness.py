"""Ways of CuPy's and NVIDIA's libraries to compute the cases of ``fused_gpu.py``.

cuTENSOR (package ``cutensor-cu13``) and ``cuda.compute`` (package ``cuda-cccl[cu13]``) may be
absent: then a way raises ``ImportError`` at its first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import programs

Array = Any
Function = Callable[..., Any]

ACCELERATED = "sum", "mean", "min"
"""Reductions for which CuPy can call libraries; it calls CUB's by default."""


def peer_ways(function: Function, blocks: Sequence[Array]) -> Iterator[tuple[str, Function]]:
    """Yield names of ways, and functions that issue one evaluation of a function of blocks."""
    name, axis = getattr(function, "reduction", (None, None))
    if name in ACCELERATED:
        yield "cupy, own kernels", _accelerated(function, blocks, [])
        yield "cupy, cuTENSOR", _accelerated(function, blocks, ["cutensor"])
    if name == "sum":
        yield "ReductionKernel", _later(lambda: _reduction_kernel(blocks[0], axis))
    if name in ("sum", "min"):
        yield "cuda.compute", _later(lambda: _reduced_by_compute(blocks[0], name, axis))
    if function is programs.gelu:
        yield "cuda.compute", _later(lambda: _gelu_by_compute(blocks[0]))


def _later(make: Callable[[], Function]) -> Function:
    """Return a function that is made at its first call, which may lack a package."""
    made = cache(make)
    return lambda: made()()


def _accelerated(function: Function, blocks: Sequence[Array], names: list[str]) -> Function:
    """Return CuPy's function with other libraries than CUB."""

    def issue() -> None:
        import cupy
        from cupy import _core

        if names:
            import cupyx.cutensor  # noqa: F401
        before = _core.get_routine_accelerators(), _core.get_reduction_accelerators()
        _core.set_routine_accelerators(names)
        _core.set_reduction_accelerators([])
        try:
            function(cupy, *blocks)
        finally:
            _core.set_routine_accelerators(before[0])
            _core.set_reduction_accelerators(before[1])

    return issue


def _reduction_kernel(block: Array, axis: int | None) -> Function:
    import cupy

    kernel = cupy.ReductionKernel("T x", "T y", "x", "a + b", "y = a", "0", "bench_sum")
    return lambda: kernel(block, axis=axis)


def _reduced_by_compute(block: Array, name: str, axis: int | None) -> Function:
    """Return a reduction of all, of rows as equal segments, or of columns through an iterator."""
    import cupy
    from cuda import compute

    rows, columns = map(np.int64, block.shape)
    operator = {"sum": compute.OpKind.PLUS, "min": compute.OpKind.MINIMUM}[name]
    start = np.array([0 if name == "sum" else np.inf], block.dtype)
    flat = block.ravel()
    if axis is None:
        out = cupy.empty(1, block.dtype)
        return lambda: compute.reduce_into(
            d_in=flat, d_out=out, op=operator, num_items=block.size, h_init=start
        )
    number, length = (rows, columns) if axis == 1 else (columns, rows)
    offsets = cupy.arange(number + 1, dtype=np.int64) * length
    out = cupy.empty(int(number), block.dtype)
    source = flat
    if axis == 0:
        places = compute.TransformIterator(
            compute.CountingIterator(np.int64(0)), lambda i: i % rows * columns + i // rows
        )
        source = compute.PermutationIterator(flat, places)
    return lambda: compute.segmented_reduce(
        d_in=source,
        d_out=out,
        num_segments=int(number),
        start_offsets_in=offsets[:-1],
        end_offsets_in=offsets[1:],
        op=operator,
        h_init=start,
    )


def _gelu_by_compute(block: Array) -> Function:
    import math

    import cupy
    from cuda import compute

    a, b, half, one = map(np.float32, (0.79788456, 0.044715, 0.5, 1))
    out = cupy.empty_like(block)

    def gelu(x: Any) -> Any:
        return half * x * (one + math.tanh(a * (x + b * x * x * x)))

    return lambda: compute.unary_transform(
        d_in=block.ravel(), d_out=out.ravel(), op=gelu, num_items=block.size
    )
