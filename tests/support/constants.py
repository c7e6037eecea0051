"""Programs in pairs that differ in one constant, for each kind of layer that ``dask.array`` makes.

Each takes an array of shape (8, 8), and 0 or 1 for one of two constants. Whoever keeps what was
made of a graph must not take the one for the other.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import dask
import dask.array as da
import numpy as np

Program = Callable[[da.Array, int], da.Array]

ROW = np.arange(8.0)
PERMUTED = ([3, 1, 0, 2, 7, 5, 4, 6], [3, 1, 0, 2, 7, 5, 6, 4])
MASKS = (ROW % 2 == 0, ROW % 3 == 0)


def assigned(index: Callable[[int], Any], value: Callable[[int], Any]) -> Program:
    """Return a program that assigns a value to a part of an array."""

    def program(x: da.Array, k: int) -> da.Array:
        z = x + 0.0
        z[index(k)] = value(k)
        return z

    return program


def captured(k: int) -> Callable[[Any], Any]:
    """Return a function with an array in its closure."""
    table = ROW + k
    return lambda block: block + table[0]


def default(k: int) -> Callable[..., Any]:
    """Return a function with a default."""

    def added(block: Any, table: Any = ROW + k) -> Any:
        return block + table[0]

    return added


class Scale:
    """A callable object."""

    def __init__(self, k: int) -> None:
        self.factor = k + 2.0

    def __call__(self, block: Any) -> Any:
        return block * self.factor


def inverse(block: Any) -> Any:
    """Tell zeros of different sign apart."""
    with np.errstate(divide="ignore"):
        return 1 / block


def chunk_sum(block: Any, axis: Any = None, keepdims: bool = True, power: Any = None) -> Any:
    return np.sum(block**power, axis=axis, keepdims=keepdims)


def rng(k: int) -> Any:
    return da.random.default_rng(k)


ASSIGNMENTS: dict[str, Program] = {
    "a number": assigned(lambda k: np.s_[:, 0], float),
    "another zero": assigned(lambda k: np.s_[:, 0], lambda k: (0.0, -0.0)[k]),
    "another type": assigned(lambda k: np.s_[:, 0], lambda k: (1, True)[k]),
    "a row": assigned(lambda k: np.s_[2], lambda k: ROW + k),
    "a block": assigned(lambda k: np.s_[2:5, 1:7], lambda k: np.full((3, 6), k + 1.0)),
    "a list": assigned(lambda k: np.s_[2], lambda k: [k + 1.0] * 8),
    "an array of Dask": assigned(lambda k: np.s_[2], lambda k: da.from_array(ROW + k, chunks=4)),
    "to a mask": assigned(lambda k: MASKS[k], lambda k: 5.0),
    "to a mask of Dask": assigned(lambda k: da.from_array(MASKS[k], chunks=4), lambda k: 5.0),
    "to places": assigned(lambda k: np.array([1, 3, 4 + k]), lambda k: 5.0),
    "to a list of places": assigned(lambda k: [1, 3, 4 + k], lambda k: 5.0),
    "to a slice": assigned(lambda k: np.s_[k:4], lambda k: 5.0),
}

RANDOM: dict[str, Program] = {
    "seed": lambda x, k: x + rng(k).random((8, 8), chunks=4),
    "seed of a state": lambda x, k: x + da.random.RandomState(k).random_sample((8, 8), chunks=4),
    "normal": lambda x, k: x + rng(1).normal(k, 1.0, (8, 8), chunks=4),
    "normal of arrays": lambda x, k: x + rng(1).normal(ROW + k, 1.0, (8, 8), chunks=4),
    "integers": lambda x, k: x + rng(1).integers(3 + k, size=(8, 8), chunks=4),
    "choice": lambda x, k: x + rng(1).choice(ROW + k, size=(8, 8), chunks=4),
    "choice, seed": lambda x, k: x + rng(k).choice(ROW, size=(8, 8), chunks=4),
    "choice, p": lambda x, k: x + rng(1).choice(2, size=(8, 8), chunks=4, p=np.array([k, 1.0 - k])),
    "choice of a state": lambda x, k: (
        x + da.random.RandomState(k).choice(ROW, size=(8, 8), chunks=4)
    ),
    "permutation": lambda x, k: x + rng(k).permutation(da.arange(8.0, chunks=4)),
}

FUNCTIONS: dict[str, Program] = {
    "closure": lambda x, k: x.map_blocks(captured(k), dtype=float),
    "default": lambda x, k: x.map_blocks(default(k), dtype=float),
    "object": lambda x, k: x.map_blocks(Scale(k), dtype=float),
    "partial": lambda x, k: x.map_blocks(partial(np.add, np.full(1, float(k))), dtype=float),
    "argument": lambda x, k: x.map_blocks(np.add, np.full(1, float(k)), dtype=float),
    "keyword": lambda x, k: x.map_blocks(np.clip, min=0.2, max=0.5 + 0.1 * k, dtype=float),
    "keyword, array": lambda x, k: x.map_blocks(
        np.clip, min=np.full(1, 0.2), max=np.full(1, 0.5 + 0.1 * k), dtype=float
    ),
    "block_info": lambda x, k: x.map_blocks(
        lambda block, factor, block_id: block * factor + sum(block_id), 1.0 + k, dtype=float
    ),
    "blockwise": lambda x, k: da.blockwise(
        operator.add, "ij", x, "ij", np.float32(k), None, dtype=float
    ),
    "apply_along_axis": lambda x, k: da.apply_along_axis(
        lambda row, table: np.array(row.sum() + table[0]), 1, x.rechunk((4, 8)), ROW + k
    ),
    "reduction": lambda x, k: da.reduction(
        x, partial(chunk_sum, power=1.0 + k), np.sum, axis=0, dtype=float, concatenate=True
    ),
    "delayed": lambda x, k: (
        x + da.from_delayed(dask.delayed(np.full)(8, float(k)), (8,), dtype=float)
    ),
    "gufunc": lambda x, k: da.apply_gufunc(
        lambda row, scale: row.sum(-1) * scale, "(i)->()", x.rechunk((4, 8)), scale=1.0 + k
    ),
    "boundary": lambda x, k: da.map_overlap(
        lambda block: np.copysign(block, block[0, 0]),
        x,
        depth=1,
        boundary=(0.0, -0.0)[k],
        dtype=float,
    ),
    "boundary, other type": lambda x, k: x.map_overlap(
        np.cumsum, depth=1, boundary=(2.0, 3.0)[k], axis=0, dtype=float
    ),
    "depth": lambda x, k: x.map_overlap(
        lambda block: block + block.shape[0], depth=1 + k, boundary="reflect", dtype=float
    ),
}

ELEMENTWISE: dict[str, Program] = {
    "number": lambda x, k: x + k,
    "zero": lambda x, k: inverse_of(x * 0 + (0.0, -0.0)[k] - 0.0 * x),
    "zero in copysign": lambda x, k: da.copysign(x, (0.0, -0.0)[k]),
    "zero of float32": lambda x, k: da.copysign(x, np.float32((0.0, -0.0)[k])),
    "long number": lambda x, k: x * (0.123456789 + k),
    "not a number": lambda x, k: x + (np.nan, np.inf)[k],
    "complex": lambda x, k: x * complex(1.0, (0.0, -0.0)[k]),
    "type": lambda x, k: (x > 0.5) + (1, True)[k],
    "type of float": lambda x, k: x.astype("f4") + (1.0, np.float64(1))[k],
    "row": lambda x, k: x * (ROW + k),
    "where": lambda x, k: da.where(x > 0.5, x, (0.0, -0.0)[k]),
    "clip": lambda x, k: da.clip(x, 0.2 + 0.1 * k, 0.9),
    "round": lambda x, k: da.round(x, 1 + k),
    "nan_to_num": lambda x, k: da.nan_to_num(da.where(x > 0.5, (np.nan, np.inf)[k], x)),
    "astype": lambda x, k: x.astype(("f4", "f8")[k]),
    "isclose": lambda x, k: da.isclose(x, x + 0.01, atol=(0.1, 1e-9)[k]),
    "choose": lambda x, k: da.choose((x > 0.5).astype(int), [x, x + k]),
    "piecewise": lambda x, k: da.piecewise(x, [x < 0.5, x >= 0.5], [float(k), 2.0]),
    "isin": lambda x, k: da.isin((8 * x).astype(int), [1, 3, 4 + k]),
    "digitize": lambda x, k: da.digitize(x, np.array([0.2, 0.5 + 0.1 * k])),
}


def inverse_of(x: da.Array) -> da.Array:
    return x.map_blocks(inverse, dtype=float)


CREATION: dict[str, Program] = {
    "full": lambda x, k: x + da.full((8, 8), k + 0.5, chunks=4),
    "full, zero": lambda x, k: da.copysign(x, da.full((8, 8), (0.0, -0.0)[k], chunks=4)),
    "arange": lambda x, k: x + da.arange(k, k + 8, chunks=4),
    "linspace": lambda x, k: x + da.linspace(0, 1 + k, 8, chunks=4),
    "eye": lambda x, k: x + da.eye(8, k=k, chunks=4),
    "diag": lambda x, k: da.diag(da.from_array(ROW + k, chunks=4)) + x,
    "tri": lambda x, k: da.tril(x, k=k),
    "fromfunction": lambda x, k: (
        x + da.fromfunction(lambda i, j: i + k * j, shape=(8, 8), chunks=4, dtype=float)
    ),
    "indices": lambda x, k: x + da.indices((8, 8), chunks=4)[k],
    "meshgrid": lambda x, k: x + da.meshgrid(da.from_array(ROW + k, chunks=4), ROW)[0],
    "from_array": lambda x, k: x + da.from_array(np.outer(ROW, ROW + k), chunks=4),
    "from_array, one block": lambda x, k: x + da.from_array(ROW + k, chunks=-1),
    "repeated": lambda x, k: x + da.tile(da.from_array(ROW[:4] + k, chunks=2), 2),
}

MOVEMENT: dict[str, Program] = {
    "slice": lambda x, k: x[k : 6 + k],
    "step": lambda x, k: x[:: 1 + k],
    "number": lambda x, k: x[k],
    "places": lambda x, k: x[PERMUTED[k]],
    "places, array": lambda x, k: x[:, np.array(PERMUTED[k])],
    "take": lambda x, k: da.take(x, PERMUTED[k], axis=1),
    "points": lambda x, k: x.vindex[PERMUTED[k], PERMUTED[0]],
    "mask": lambda x, k: da.compress(MASKS[k], x, axis=0),
    "roll": lambda x, k: da.roll(x, 1 + k, axis=0),
    "pad": lambda x, k: da.pad(x, 2, constant_values=float(k)),
    "pad, width": lambda x, k: da.pad(x, 1 + k, mode="edge"),
    "repeat": lambda x, k: da.repeat(x, 1 + k, axis=0),
    "insert": lambda x, k: da.insert(x, 2 + k, 7.0, axis=0),
    "insert, value": lambda x, k: da.insert(x, 2, 7.0 + k, axis=0),
    "delete": lambda x, k: da.delete(x, 2 + k, axis=0),
    "diff": lambda x, k: da.diff(x, n=1 + k, axis=0),
    "gradient": lambda x, k: da.gradient(x, 1.0 + k, axis=0),
    "transpose": lambda x, k: x.transpose((k, 1 - k)),
    "reshape": lambda x, k: x.reshape(((4, 2, 8), (8, 2, 4))[k]),
    "concatenate": lambda x, k: da.concatenate([x, 2 * x], axis=k),
    "stack": lambda x, k: da.stack([x, 2 * x], axis=k)[1],
    "flip": lambda x, k: da.flip(x, axis=k),
    "windows": lambda x, k: da.lib.stride_tricks.sliding_window_view(x, 2 + k, axis=0).sum(-1),
}

REDUCTIONS: dict[str, Program] = {
    "axis": lambda x, k: x.sum(axis=k),
    "keepdims": lambda x, k: x.sum(axis=0, keepdims=bool(k)) + x,
    "dtype": lambda x, k: x.astype("f4").sum(axis=0, dtype=("f4", "f8")[k]),
    "ddof": lambda x, k: x.std(axis=0, ddof=k),
    "order": lambda x, k: da.moment(x, 2 + k, axis=0),
    "average": lambda x, k: da.average(x, axis=1, weights=ROW + 1 + k),
    "cumsum": lambda x, k: da.cumsum(x, axis=k),
    "topk": lambda x, k: da.topk(x, 2 + k, axis=0),
    "argtopk": lambda x, k: da.argtopk(x, 2 + k, axis=0),
    "argmax": lambda x, k: da.argmax(x, axis=k),
    "percentile": lambda x, k: da.percentile(x.ravel(), [50 + 10 * k]),
    "median": lambda x, k: da.median(x, axis=k),
    "coarsen": lambda x, k: da.coarsen((np.sum, np.max)[k], x, {0: 2}),
    "histogram": lambda x, k: da.histogram(x, bins=4, range=(0, 1 + k))[0],
    "histogram, bins": lambda x, k: da.histogram(x, bins=np.array([0, 0.5 + 0.1 * k, 1.0]))[0],
    "bincount": lambda x, k: da.bincount(
        da.arange(8, chunks=4) // 2, weights=da.from_array(ROW + k, chunks=4), minlength=4
    ),
    "norm": lambda x, k: da.linalg.norm(x, ord=1 + k, axis=0),
    "cov": lambda x, k: da.cov(x, ddof=k),
    "searchsorted": lambda x, k: da.searchsorted(da.arange(8, chunks=4), 8 * x - k),
}

COLLECTIVES: dict[str, Program] = {
    "product": lambda x, k: x @ da.from_array(np.outer(ROW, ROW + k), chunks=4),
    "tensordot": lambda x, k: da.tensordot(x, x, axes=(0, k)),
    "einsum": lambda x, k: da.einsum(("ij,jk->ik", "ij,kj->ik")[k], x, x),
    "fft, length": lambda x, k: da.fft.fft(x, n=8 + k, axis=0),
    "fft, norm": lambda x, k: da.fft.fft(x, axis=0, norm=("backward", "ortho")[k]),
    "fftshift": lambda x, k: da.fft.fftshift(x, axes=k),
    "rechunk": lambda x, k: x.rechunk((3 + k, 8)).cumsum(axis=1),
    "qr": lambda x, k: da.linalg.qr(x.rechunk((4, 8)) + k)[1],
    "solve": lambda x, k: da.linalg.solve(x + 8 * da.eye(8, chunks=4), x[:, 0] + k),
}

GROUPS: dict[str, dict[str, Program]] = {
    "assignment": ASSIGNMENTS,
    "random": RANDOM,
    "function": FUNCTIONS,
    "elementwise": ELEMENTWISE,
    "creation": CREATION,
    "movement": MOVEMENT,
    "reduction": REDUCTIONS,
    "collective": COLLECTIVES,
}
PROGRAMS: dict[str, Program] = {
    f"{group}: {name}": program
    for group, programs in GROUPS.items()
    for name, program in programs.items()
}


def before(program: Program, x: da.Array, k: int) -> da.Array:
    """Compute something of the result of a program in a gang."""
    y = program(x, k)
    y = da.where(da.isfinite(y) & (abs(y) < 1e9), y, 7 * (da.isnan(y) + 1.0))
    y = y if y.ndim == 2 else da.outer(y.ravel(), ROW[:4])
    return y.T @ y


def after(program: Program, x: da.Array, k: int) -> da.Array:
    """Run a program on the result of a gang."""
    return program((x @ x.T) / 8, k)


def alone(program: Program, x: da.Array, k: int) -> da.Array:
    """Run a program."""
    return program(x, k)


WAYS = {"alone": alone, "before a gang": before, "after a gang": after}


def same(found: Any, expected: Any) -> None:
    """Compare values, kinds of zeros and dtype."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    if expected.dtype.kind == "f":
        exact = np.isin(expected, (0, np.inf, -np.inf))
        np.testing.assert_array_equal(np.signbit(found[exact]), np.signbit(expected[exact]))
