"""Factorizations of matrices."""

from __future__ import annotations

import math

from tests.fuzz.draw import Draw
from tests.fuzz.kinds.elementwise import is_number
from tests.fuzz.kinds.movement import is_known
from tests.fuzz.kinds.registry import kind
from tests.fuzz.values import Step, Unfit, Value, dask_only


def is_tall(v: Value) -> bool:
    return v.ndim == 2 and v.shape[0] >= v.shape[1] > 0 and v.kind in "fc" and v.dtype != "f2"


def in_rows(a: Value) -> str:
    """The source of a matrix in rows of plain Dask's chunks."""
    return f"{a.name}.rechunk(({a.lazy.chunks[0]}, -1))"


@kind()
def triangular_factor(d: Draw) -> Step:
    """The signs of a factor are free, those of its square are not."""
    a = d.value(is_tall, is_number, is_known, lambda v: v.finite)
    m, n = a.shape
    return dask_only(
        f"squared({a.name})",
        f"squared(da.linalg.qr({in_rows(a)})[1])",
        2 * m * a.error * a.largest,
        m * n * a.largest**2,
    )


@kind()
def singular_values(d: Draw) -> Step:
    a = d.value(is_tall, is_number, is_known, lambda v: v.finite)
    size = math.sqrt(a.array.size)
    return dask_only(
        f"np.linalg.svd({a.name}, compute_uv=False)",
        f"da.linalg.svd({in_rows(a)})[1]",
        size * a.error,
        a.array.size * a.largest,
    )


@kind()
def cholesky(d: Draw) -> Step:
    """Of a matrix that is far from singular."""
    a = d.value(lambda v: v.ndim == 2 and v.dtype == "f8" and v.finite and v.exact, is_known)
    n = a.shape[0]
    if not n or a.largest > 100:
        raise Unfit("the matrix would be empty, or its numbers large")
    least = 1 + a.array.size * a.largest**2
    size = d.choice([each for each in range(1, n + 1) if n % each == 0])
    lower = d.choice((True, False))
    square, eye = f"{a.name} @ {a.name}.T", f"eye({n}) * {least}"
    numpy = f"np.linalg.cholesky({square} + np.{eye})"
    plain = f"da.linalg.cholesky(({square} + da.{eye}).rechunk({size}), lower={lower})"
    work = 2 * n * math.sqrt(least)
    return dask_only(numpy if lower else f"{numpy}.T", plain, 0.0, work)
