"""What the programs of the suite take: sizes, kinds of values, and the tolerance of results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import programs


@dataclass(frozen=True)
class Sizes:
    """The sizes of all inputs.

    Parameters
    ----------
    workers : int
        Number of workers. Tall arrays have two blocks for each.
    n : int
        Rows of tall arrays for each worker.
    m : int
        Side of square arrays, in 4 x 4 blocks.
    """

    workers: int
    n: int
    m: int


Lengths = tuple[int, ...]


@dataclass(frozen=True)
class Input:
    """One input of a program.

    Parameters
    ----------
    shape, chunks : callable
        Return the shape and the chunks for some sizes.
    kind : str
        ``"normal"`` or ``"uniform"`` numbers, ``"positive"`` ones from 0.5 to 1.5, or
        ``"labels"``: 0 or 1.
    """

    shape: Callable[[Sizes], Lengths]
    chunks: Callable[[Sizes], Lengths]
    kind: str = "normal"


@dataclass(frozen=True)
class Program:
    """A program of the suite.

    Parameters
    ----------
    function : callable
        Takes a namespace and arrays, returns an array or a tuple of arrays.
    inputs : tuple of Input
        What the arrays are.
    tolerance : float
        Largest difference from NumPy's result in double precision, over its largest number.
    """

    function: Callable[..., Any]
    inputs: tuple[Input, ...]
    tolerance: float = 1e-3


def rows(width: int, kind: str = "normal") -> Input:
    """Return a tall input."""
    return Input(lambda s: (s.workers * s.n, width), lambda s: (s.n // 2, width), kind)


def column(kind: str = "normal", factor: int = 1) -> Input:
    """Return a vector as long as a tall input, or ``factor`` times."""
    return Input(lambda s: (factor * s.workers * s.n,), lambda s: (factor * s.n // 2,), kind)


def square(kind: str = "normal") -> Input:
    """Return a square input in 4 x 4 blocks."""
    return Input(lambda s: (s.m, s.m), lambda s: (s.m // 4, s.m // 4), kind)


def side(kind: str = "normal") -> Input:
    """Return a vector as long as the side of a square input."""
    return Input(lambda s: (s.m,), lambda s: (s.m // 4,), kind)


def small(*shape: int, kind: str = "normal") -> Input:
    """Return an input of one block."""
    return Input(lambda s: shape, lambda s: shape, kind)


DAYS = Input(lambda s: (s.m // 4, 366, s.m // 4), lambda s: (s.m // 4, 61, s.m // 8))
LEFT = Input(lambda s: (s.m // 4, 64, 64), lambda s: (s.m // 16, 32, 64))
RIGHT = Input(lambda s: (64, 64, s.m // 4), lambda s: (32, 64, s.m // 16))
STACK = Input(lambda s: (4 * s.workers, s.m // 8, s.m // 8), lambda s: (2, s.m // 16, s.m // 16))
SIGNALS = Input(lambda s: (s.workers * s.n // 8, 4096), lambda s: (s.n // 8, 4096))
SLABS = Input(lambda s: (s.m, s.m), lambda s: (s.m // s.workers, s.m))
NONNEGATIVE = rows(256, "uniform"), rows(16, "positive"), small(16, 256, kind="positive")

_TABLE = (
    Program(programs.covariance, (rows(512),)),
    Program(programs.standardise, (rows(512),)),
    Program(programs.correlation, (rows(256),), tolerance=5e-3),
    Program(programs.moments, (rows(512),)),
    Program(programs.min_max_scale, (rows(512),)),
    Program(programs.histogram, (column("uniform", 64),)),
    Program(programs.argmax_accuracy, (rows(512),)),
    Program(programs.anomaly, (DAYS,)),
    Program(programs.gelu, (rows(512),)),
    Program(programs.weighted_sum, (rows(512), small(512, kind="uniform"))),
    Program(programs.softmax, (rows(512),)),
    Program(programs.layer_norm, (rows(512), small(512, kind="positive"), small(512))),
    Program(programs.black_scholes, (column("positive", 64),) * 3),
    Program(programs.kmeans_step, (rows(64), small(16, 64))),
    Program(programs.linear_regression, (rows(256), column())),
    Program(programs.logistic_regression, (rows(256), column("labels"))),
    Program(programs.power_iteration, (square("positive"), side("positive"))),
    Program(programs.conjugate_gradient, (square("uniform"), side()), tolerance=2e-2),
    Program(programs.sinkhorn, (square("uniform"), side("positive"), side("positive"))),
    Program(programs.nonnegative_factors, NONNEGATIVE),
    Program(programs.add_transpose, (square(),)),
    Program(programs.shifted_difference, (square(),) * 2),
    Program(programs.product_add_normalise, (square(),) * 3, tolerance=5e-3),
    Program(programs.einsum_product, (square(),) * 2, tolerance=5e-3),
    Program(programs.tensordot, (LEFT, RIGHT), tolerance=5e-3),
    Program(programs.batched_product, (STACK,) * 2, tolerance=5e-3),
    Program(programs.normal_equations, (rows(128), column()), tolerance=5e-3),
    Program(programs.tall_qr, (rows(128),)),
    Program(programs.power_spectrum, (SIGNALS,)),
    Program(programs.low_pass, (SLABS,)),
    Program(programs.gradient_magnitude, (square("uniform"),)),
    Program(programs.running_sum, (rows(512),)),
    Program(programs.gray_scott, (square("uniform"),) * 2),
)
PROGRAMS: dict[str, Program] = {each.function.__name__: each for each in _TABLE}
