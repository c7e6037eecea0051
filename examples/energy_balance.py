"""The energy balance of planets: a sum that must come out as almost nothing.

Planets of different eccentricity go round a star (Kepler's problem, units in which the
gravitational parameter is 1), integrated by the leapfrog scheme, which conserves energy
but for a small oscillation. At every step gravity does some work on each planet; over a
revolution it adds up to about zero, so the sum of all works stays as it is while that of
their absolute values grows with every step. A plain sum in single precision loses that
balance in rounding errors; a compensated one does not, and a reproducible one has the
same bits however the series is cut.

L. Verlet, "Computer experiments on classical fluids", Physical Review 159 (1967).

It prints what ``examples/output/energy_balance.txt`` shows, and draws ``build/energy_balance.png``.
"""

from __future__ import annotations

import time
from pathlib import Path

import dask.array as da
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

import dask_dgpu as dgpu
from dask_dgpu.array.reductions import Method

PLANETS = 1024
STEPS = 1 << 14
STEP = 2 * np.pi / 500  # 500 steps a revolution
LENGTHS = [1 << bits for bits in range(14, 25)]
METHODS: tuple[Method, ...] = ("dask", "compensated", "reproducible")
PICTURE = Path("build/energy_balance.png")


def works() -> NDArray[np.float32]:
    """Integrate, and return the work on each planet in each step: (STEPS, PLANETS)."""
    eccentricity = np.linspace(0.05, 0.6, PLANETS)
    position = np.array([1 + eccentricity, np.zeros(PLANETS)])  # farthest from the star
    velocity = np.array([np.zeros(PLANETS), np.sqrt((1 - eccentricity) / (1 + eccentricity))])
    found = np.empty((STEPS, PLANETS), np.float32)
    force = -position / np.hypot(*position) ** 3
    kinetic = (velocity**2).sum(axis=0) / 2
    for step in range(STEPS):
        velocity += force * (STEP / 2)
        position += velocity * STEP
        force = -position / np.hypot(*position) ** 3
        velocity += force * (STEP / 2)
        before, kinetic = kinetic, (velocity**2).sum(axis=0) / 2
        found[step] = kinetic - before
    return found


def main() -> None:
    """Sum more and more of the series by each method, and draw errors and times."""
    console = Console(highlight=False, soft_wrap=True)
    series = works().reshape(-1)
    errors: dict[str, list[float]] = {method: [] for method in METHODS}
    seconds: dict[str, list[float]] = {method: [] for method in METHODS}
    for method in METHODS:
        dgpu.sum(da.ones(8, dtype="float32"), method=method).compute()  # compiled by now
    for n in LENGTHS:
        values = series[:n]
        exact = float(dgpu.sum(values, dtype="float64", method="reproducible").compute())
        scale = float(np.abs(values, dtype="float64").sum())
        for method in METHODS:
            x = da.from_array(values, chunks=max(1 << 10, n // 16), name=False)
            start = time.perf_counter()
            found = float(dgpu.sum(x, method=method).compute())
            seconds[method].append(time.perf_counter() - start)
            errors[method].append(abs(found - exact) / abs(exact))
        ratio = scale / abs(exact)
        told = ", ".join(f"{method} {errors[method][-1]:.1e}" for method in METHODS)
        console.print(f"{n:>9} values, condition {ratio:.0e}: relative error {told}")
    cuts = [1 << 12, 99_991, len(series)]
    bits = {
        method: {float(dgpu.sum(da.from_array(series, chunks=c), method=method)) for c in cuts}
        for method in METHODS
    }
    told = ", ".join(f"{method} {len(found)}" for method, found in bits.items())
    console.print(f"different results in chunks of {cuts}: {told}")
    draw(errors, seconds)
    console.print(f"errors and times: {PICTURE}")


def draw(errors: dict[str, list[float]], seconds: dict[str, list[float]]) -> None:
    """Draw errors and times against the number of values."""
    mpl.use("Agg")
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    marks = dict(zip(METHODS, ("o-", "s-", "x--"), strict=True))
    for method, mark in marks.items():
        floor = np.finfo("float32").eps / 100  # where an error of zero is drawn
        left.loglog(LENGTHS, np.maximum(errors[method], floor), mark, label=method)
        right.loglog(LENGTHS, seconds[method], mark, label=method)
    left.axhline(np.finfo("float32").eps, color="grey", linewidth=0.8)
    left.set(xlabel="values", ylabel="relative error")
    right.set(xlabel="values", ylabel="seconds")
    left.legend()
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=120)


if __name__ == "__main__":
    main()
