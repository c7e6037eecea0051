"""Elementwise work and reductions on one GPU, in several ways: what ``fused_gpu.py`` measures."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import programs
from peer_harness import peer_ways

from dask_dgpu.kernels.fused import evaluate, evaluate_all
from dask_dgpu.kernels.fused.tracer import Trace
from graph_opt.model.expression import Expression

Array = Any
Function = Callable[..., Any]

SHAPE = 131_072, 512
CALLS = 10  # of one repetition


class Case(NamedTuple):
    """A function of a namespace and blocks, and the bytes that it must read and write.

    ``operands`` are shapes, and ``moved`` counts bytes of a block of ``SHAPE``.
    """

    function: Function
    operands: tuple[tuple[int, ...], ...]
    moved: float
    compiled: bool = False  # whether torch.compile takes part; its first use takes seconds


def softmax(xp: Any, x: Array) -> Array:
    """Return the softmax of rows."""
    e = xp.exp(x - xp.max(x, axis=1, keepdims=True))
    return e / xp.sum(e, axis=1, keepdims=True)


def layer_norm(xp: Any, x: Array, gain: Array, bias: Array) -> Array:
    """Return normalised rows, with a gain and a bias for columns."""
    c = x - xp.mean(x, axis=1, keepdims=True)
    return c / xp.sqrt(xp.mean(c * c, axis=1, keepdims=True) + 1e-5) * gain + bias


def standardise(xp: Any, x: Array, axis: int = 0) -> Array:
    """Return numbers with mean 0 and deviation 1."""
    mean = xp.mean(x, axis=axis, keepdims=True)
    return (x - mean) / xp.std(x, axis=axis, keepdims=True)


def weighted_sum(xp: Any, x: Array, w: Array) -> Array:
    """Return the sums of rows, with weights for columns."""
    return xp.sum(x * w, axis=1)


def where(xp: Any, x: Array) -> Array:
    """Return a chain of choices."""
    return xp.where(x > 0.5, x * 2 + 1, xp.where(x > 0.25, x - 1, -x))


def reduction(name: str, axis: int | None) -> Function:
    """Return a reduction along an axis, or of all numbers."""

    def reduce(xp: Any, x: Array) -> Array:
        return getattr(xp, name)(x, axis=axis)

    reduce.reduction = name, axis  # type: ignore[attr-defined]
    return reduce


def cases() -> dict[str, Case]:
    """Return all cases by name."""
    row = SHAPE[1:]
    found = {
        f"{name} {axis}": Case(
            reduction(name, axis), (SHAPE,), 1, (name, axis) in (("mean", 0), ("argmax", 1))
        )
        for axis in (0, 1, None)
        for name in ("mean", "sum", "min", "std", "argmax")
    }
    return found | {
        "gelu": Case(programs.gelu, (SHAPE,), 2, compiled=True),
        "where": Case(where, (SHAPE,), 2),
        "black_scholes": Case(programs.black_scholes, (SHAPE,) * 3, 4, compiled=True),
        "softmax": Case(softmax, (SHAPE,), 2, compiled=True),
        "layer_norm": Case(layer_norm, (SHAPE, row, row), 2, compiled=True),
        "standardise 0": Case(standardise, (SHAPE,), 3, compiled=True),
        "standardise 1": Case(lambda xp, x: standardise(xp, x, 1), (SHAPE,), 2),
        "weighted_sum": Case(weighted_sum, (SHAPE, row), 1),
        "kmeans_step": Case(programs.kmeans_step, ((8 * SHAPE[0], 64), (16, 64)), 1, compiled=True),
    }


class TorchNames:
    """NumPy's names for torch's functions."""

    def __getattr__(self, name: str) -> Function:
        import torch

        if name in ("max", "min"):
            reduced: Function = getattr(torch, f"a{name}")
        elif name == "std":
            reduced = _std
        elif name in ("sum", "mean", "argmax"):
            reduced = getattr(torch, name)
        else:
            found: Function = getattr(torch, name)
            return found

        def reduce(x: Array, axis: int | None = None, keepdims: bool = False) -> Array:
            if axis is None:
                return reduced(x.ravel(), 0)
            return reduced(x, axis, keepdim=keepdims)

        return reduce


def _std(x: Array, axis: int, keepdim: bool = False) -> Array:
    import torch

    return torch.std(x, axis, correction=0, keepdim=keepdim)


def ways(case: Case, blocks: Sequence[Array], *, peers: bool) -> Iterator[tuple[str, Function]]:
    """Yield names of ways, and functions that issue one evaluation of a case."""
    import cupy

    function = case.function
    expression = expression_of(case, blocks)
    yield "dask_dgpu", lambda: evaluate(expression, blocks)
    yield "cupy", lambda: function(cupy, *blocks)
    if not peers:
        return
    if function in (programs.gelu, where, programs.black_scholes):
        fused = cupy.fuse(lambda *given: function(cupy, *given))
        yield "cupy.fuse", lambda: fused(*blocks)
    if function is programs.gelu:
        kernel = cupy.ElementwiseKernel(
            "float32 x",
            "float32 y",
            "y = 0.5f * x * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x)))",
            "gelu",
        )
        yield "ElementwiseKernel", lambda: kernel(*blocks)
    yield from peer_ways(case.function, blocks)
    import torch

    tensors = [torch.utils.dlpack.from_dlpack(block) for block in blocks]
    names = TorchNames()
    yield "torch", lambda: function(names, *tensors)
    if case.compiled:
        torch._dynamo.reset()
        compiled = torch.compile(lambda *given: function(names, *given))
        yield "torch.compile", lambda: compiled(*tensors)
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax

    arrays = [jax.dlpack.from_dlpack(block) for block in blocks]
    jitted = jax.jit(lambda *given: function(jax.numpy, *given))
    yield "jax.jit", lambda: jitted(*arrays)


def expression_of(case: Case, blocks: Sequence[Array]) -> Expression:
    """Return a case as an expression."""
    trace = Trace()
    return trace.expression([case.function(np, *[trace.input(block) for block in blocks])])


def many_ways(case: Case, several: Sequence[Sequence[Array]]) -> Iterator[tuple[str, Function]]:
    """Yield names of ways, and functions that issue a case on many blocks of one kind."""
    expression = expression_of(case, several[0])
    yield "in one call", lambda: evaluate_all(expression, several)
    yield "one by one", lambda: [evaluate(expression, blocks) for blocks in several]


def seconds_each(way: Function, repetitions: int, calls: int = CALLS) -> tuple[float, list[float]]:
    """Return the seconds of the first call, and of one of several calls, for each repetition."""
    import cupy

    device = cupy.cuda.Device()
    device.synchronize()
    start = time.perf_counter()
    way()
    device.synchronize()
    first = time.perf_counter() - start
    found = []
    for _ in range(repetitions + 1):
        start = time.perf_counter()
        for _ in range(calls):
            way()
        device.synchronize()
        found.append((time.perf_counter() - start) / calls)
    return first, found[1:]


def issue_seconds(way: Function, repetitions: int, calls: int = 200) -> list[float]:
    """Return the seconds in which the host issues one call; it does not wait for the device."""
    import cupy

    found = []
    for _ in range(repetitions + 1):
        cupy.cuda.Device().synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            way()
        found.append((time.perf_counter() - start) / calls)
    return found[1:]
