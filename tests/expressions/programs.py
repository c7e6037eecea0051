"""Programs for both packages of arrays, by the operation that they show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Program = Callable[[Any, Any], Any]
"""Takes a package of arrays and a matrix of positive numbers, 24 x 24 in chunks of 7 x 9."""


def assigned(da: Any, x: Any) -> Any:
    y = x.copy()
    y[3:5] = 7.0
    y[:, ::5] = y[:, 1:2]
    return y


def masked(da: Any, x: Any) -> Any:
    y = x.copy()
    y[y > 0.7] = 0
    return y


def block_numbers(block: Any, block_info: Any = None) -> Any:
    return block + block_info[0]["chunk-location"][0]


def sharpened(block: Any) -> Any:
    return 2 * block - np.roll(block, 1, 0)


def windows(da: Any) -> Callable[..., Any]:
    return getattr(da, "sliding_window_view", None) or da.lib.stride_tricks.sliding_window_view


def positive(da: Any, x: Any) -> Any:
    return (x @ x.T + 24 * da.eye(24, chunks=7)).rechunk(8)


QUICK = (
    *("matmul", "einsum", "elementwise", "sum", "std", "argmax", "cumsum", "histogram"),
    *("transpose", "fancy", "mask", "setitem", "rechunk", "reshape", "concatenate"),
    *("map_overlap", "qr"),
)
"""Those of the quick tests."""

PROGRAMS: dict[str, Program] = {
    "matmul": lambda da, x: x @ x.T,
    "matmul, stacks": lambda da, x: da.matmul(da.stack([x, 2 * x]), x[None]),
    "matmul, vector": lambda da, x: x @ x[0],
    "dot": lambda da, x: da.dot(x.T, x),
    "tensordot": lambda da, x: da.tensordot(x, x, axes=([0], [0])),
    "vdot": lambda da, x: da.vdot(x, x),
    "outer": lambda da, x: da.outer(x[0], x[:, 1]),
    "einsum": lambda da, x: da.einsum("ij,kj->ik", x, x),
    "elementwise": lambda da, x: da.exp(-x) * 2 + da.sqrt(x) / x.T,
    "where": lambda da, x: da.where(x > 0.5, x, -x),
    "ufunc, where": lambda da, x: da.add(x, 1, where=x > 0.5, out=da.zeros_like(x)),
    "clip": lambda da, x: da.clip(x, 0.2, 0.6).round(1),
    "modf": lambda da, x: da.modf(5 * x)[1],
    "isclose": lambda da, x: da.isclose(x, x.T),
    "sum": lambda da, x: x.sum(),
    "sum, axis": lambda da, x: x.sum(axis=0, keepdims=True),
    "prod": lambda da, x: (x + 0.5).prod(axis=1),
    "mean": lambda da, x: x.mean(axis=(0, 1), dtype="f4"),
    "std": lambda da, x: x.std(axis=0, ddof=1),
    "moment": lambda da, x: da.moment(x, 3, axis=1),
    "min, any": lambda da, x: (x.min(axis=0) > 0.1) | (x > 0.9).any(axis=0),
    "nanmax": lambda da, x: da.nanmax(da.where(x > 0.5, x, np.nan), axis=1),
    "nanvar": lambda da, x: da.nanvar(da.where(x > 0.2, x, np.nan)),
    "argmax": lambda da, x: x.argmax(axis=1),
    "nanargmin": lambda da, x: da.nanargmin(da.where(x > 0.2, x, np.nan), axis=0),
    "topk": lambda da, x: da.topk(x, 3, axis=0),
    "argtopk": lambda da, x: da.argtopk(x, -2, axis=1),
    "median": lambda da, x: da.median(x, axis=0),
    "quantile": lambda da, x: da.quantile(x.rechunk((7, -1)), 0.3, axis=1),
    "cumsum": lambda da, x: x.cumsum(axis=0),
    "cumprod": lambda da, x: da.cumprod(x + 0.5, axis=1),
    "cumsum, blelloch": lambda da, x: da.cumsum(x, axis=0, method="blelloch"),
    "histogram": lambda da, x: da.histogram(x, bins=5, range=(0, 1))[0],
    "bincount": lambda da, x: da.bincount((9 * x).astype(int).ravel(), minlength=10),
    "unique": lambda da, x: da.unique((9 * x).astype(int)),
    "corrcoef": lambda da, x: da.corrcoef(x),
    "cov": lambda da, x: da.cov(x),
    "average": lambda da, x: da.average(x, axis=0, weights=x[:, 0]),
    "transpose": lambda da, x: x.T[3:, ::2],
    "slice": lambda da, x: x[::-2, 5:20],
    "integer": lambda da, x: x[3] + x[:, -1],
    "fancy": lambda da, x: x[[1, 5, 3, 3]],
    "vindex": lambda da, x: x.vindex[[1, 2, 23], [3, 4, 0]],
    "mask": lambda da, x: x[x > 0.5],
    "mask, rows": lambda da, x: x[x[:, 0] > 0.5].sum(axis=0),
    "take": lambda da, x: da.take(x, [3, 0, 1], axis=1),
    "compress": lambda da, x: da.compress([True, False, True], x, axis=0),
    "setitem": assigned,
    "setitem, mask": masked,
    "rechunk": lambda da, x: x.rechunk((5, 24)) + 1,
    "reshape": lambda da, x: x.reshape(4, 6, 24).sum(axis=1),
    "ravel": lambda da, x: x.ravel()[::7],
    "squeeze": lambda da, x: x[:, None, :1].squeeze(),
    "broadcast_to": lambda da, x: da.broadcast_to(x[0], (5, 24)) * 2,
    "concatenate": lambda da, x: da.concatenate([x, x.T], axis=1),
    "stack": lambda da, x: da.stack([x, x + 1], axis=1),
    "block": lambda da, x: da.block([[x, x], [x.T, x]]),
    "roll": lambda da, x: da.roll(x, 3, axis=0),
    "diff": lambda da, x: da.diff(x, n=2, axis=1),
    "gradient": lambda da, x: da.gradient(x, axis=0),
    "pad": lambda da, x: da.pad(x, ((2, 1), (0, 3)), mode="reflect"),
    "flip": lambda da, x: da.flip(x, 0) + da.rot90(x),
    "tile, repeat": lambda da, x: da.repeat(da.tile(x, (1, 2)), 2, axis=0),
    "coarsen": lambda da, x: da.coarsen(np.mean, x.rechunk(8), {0: 4, 1: 2}),
    "tril": lambda da, x: da.tril(x) - da.triu(x),
    "diag": lambda da, x: da.diag(x[0]) + da.diag(da.diag(x)),
    "searchsorted": lambda da, x: da.searchsorted(x[0].cumsum(axis=0), x[1]),
    "isin": lambda da, x: da.isin((9 * x).astype(int), [2, 5]),
    "map_blocks": lambda da, x: x.map_blocks(np.fliplr),
    "map_blocks, block_info": lambda da, x: x.map_blocks(block_numbers, dtype=float),
    "map_overlap": lambda da, x: da.map_overlap(sharpened, x, depth=1, boundary="periodic"),
    "map_overlap, edges": lambda da, x: x.map_overlap(sharpened, depth={0: (2, 1)}, trim=True),
    "sliding_window_view": lambda da, x: windows(da)(x, 3, axis=0).sum(axis=-1),
    "apply_along_axis": lambda da, x: da.apply_along_axis(np.sort, 0, x, dtype=float, shape=(24,)),
    "apply_gufunc": lambda da, x: da.apply_gufunc(np.dot, "(i),(i)->()", *x[:2].rechunk((1, -1))),
    "fft": lambda da, x: da.fft.fft(x.rechunk((24, 9)), axis=0),
    "qr": lambda da, x: abs(da.linalg.qr(x.rechunk((9, 24)))[1]),
    "svd": lambda da, x: da.linalg.svd(x.rechunk((9, 24)))[1],
    "cholesky": lambda da, x: da.linalg.cholesky(positive(da, x), lower=True),
    "solve": lambda da, x: da.linalg.solve(positive(da, x), x[:, 0].rechunk(8)),
    "norm": lambda da, x: da.linalg.norm(x, axis=1),
    "ones": lambda da, x: da.ones((5, 7), chunks=3) + da.full((5, 7), 2.5, chunks=3),
    "arange": lambda da, x: da.arange(10, chunks=3) * da.linspace(0, 1, 10, chunks=3),
    "optimize": lambda da, x: da.optimize(x + 1)[0] @ x,
}


def cases() -> list[Any]:
    """Return the names of all programs, as parameters of tests."""
    slow = [pytest.param(name, marks=pytest.mark.slow) for name in PROGRAMS if name not in QUICK]
    return [*QUICK, *slow]
