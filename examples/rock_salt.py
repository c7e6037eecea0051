"""The potential within a crystal of rock salt, and at its surface.

Sodium and chloride ions are point charges on a lattice of known distance. Their potential
solves Poisson's equation: of the crystal with periodic boundaries, of a crystal four layers
thick between two grounded plates with zeros along one axis. What an ion feels of all others
is Madelung's constant, known to many digits; grids of three distances lead to it. Charges
are made on the workers, in slabs, and each potential is one call of ``dgpu.poisson``.

It prints what ``examples/output/rock_salt.txt`` shows, and draws ``build/rock_salt.png``.
"""

from __future__ import annotations

from math import prod
from pathlib import Path

import dask.array as da
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.constants import angstrom, elementary_charge, epsilon_0, pi
from scipy.special import gamma

import dask_dgpu as dgpu
from dask_dgpu.environment.gpus import count_gpus

DISTANCE = 2.820 * angstrom  # of neighbouring ions
POINTS = (8, 16, 32)  # of the grid from one ion to the next
LAYERS = range(2, 6)  # of ions, in a box of eight
UNIT = elementary_charge / (4 * pi * epsilon_0 * DISTANCE)  # volts
# M. L. Glasser and I. J. Zucker, "Lattice sums", Theoretical Chemistry: Advances and
# Perspectives 5 (1980): in the crystal, and in a single layer; a surface has half of each
CRYSTAL, LAYER = -1.7475645946, -1.6155426267
# what a unit charge on the grid does to its own place: Watson's integral (the same, 1977)
OWN = 6**0.5 / (192 * pi**3) * prod(float(gamma(k / 24)) for k in (1, 5, 7, 11))
WORKERS = count_gpus() or 4
PICTURE = Path("build/rock_salt.png")


def ions(shape: tuple[int, int, int], points: int, layers: range) -> da.Array:
    """Make the charges, in elementary ones, in eight slabs. This is all plain Dask."""
    lines = []
    for axis, length in enumerate(shape):
        k = da.arange(length, chunks=length if axis else -(-length // 8))
        here = k % points == 0
        if axis == 0:
            here &= (k >= layers.start * points) & (k < layers.stop * points)
        lines.append(da.where(here, 1.0 - 2 * (k // points % 2), 0.0))
    return lines[0][:, None, None] * lines[1][:, None] * lines[2]


def crystal(points: int) -> da.Array:
    """Solve for the potential, in volts, in two by two by two cells of the crystal."""
    side = 4 * points
    return potential(ions((side, side, side), points, range(4)), points, "periodic")


def surface(points: int) -> da.Array:
    """Solve for the potential, in volts, of layers of ions between two grounded plates."""
    shape = 8 * points, 2 * points, 2 * points
    return potential(ions(shape, points, LAYERS), points, ("zero", "periodic", "periodic"))


def potential(charges: da.Array, points: int, boundary: str | tuple[str, ...]) -> da.Array:
    """Solve Poisson's equation."""
    step = DISTANCE / points
    rhs = charges * (-elementary_charge / epsilon_0 / step**3)
    return dgpu.poisson(rhs, step, boundary)


def madelung(u: da.Array, points: int, layer: int) -> float:
    """Return what the other ions do to an ion of a layer, in units of what one would do."""
    volts = float(u[layer * points, 0, 0].to_backend("numpy").compute())
    return volts * (-1) ** layer / UNIT - 4 * pi * OWN * points


def limit(values: list[float]) -> float:
    """Extrapolate: errors of halved distances are of their second and fourth powers."""
    coarse, middle, fine = values
    one, other = (4 * middle - coarse) / 3, (4 * fine - middle) / 3
    return (16 * other - one) / 15


def main() -> None:
    """Solve on three grids each, compare with the known constants, and draw."""
    console = Console(highlight=False, soft_wrap=True)
    found: dict[str, list[float]] = {"in the crystal": [], "at its surface": []}
    with dgpu.start(n_workers=WORKERS, dashboard_address=":0") as client:
        dgpu.enable(client, when="always")
        console.rule("explain")
        console.print(str(dgpu.explain(surface(POINTS[-1]))))
        for points in POINTS:
            inside, outside = crystal(points).persist(), surface(points).persist()
            found["in the crystal"].append(madelung(inside, points, 0))
            found["at its surface"].append(madelung(outside, points, LAYERS.start))
        planes = [plane.to_backend("numpy").compute() for plane in (inside[0], outside[:, :, 0].T)]
    console.rule()
    table = Table(title="Madelung's constant, by points of the grid from ion to ion")
    for title in ("", *map(str, POINTS), "limit", "known"):
        table.add_column(title, justify="right" if title else "left")
    known = CRYSTAL, (CRYSTAL + LAYER) / 2
    for (place, values), exact in zip(found.items(), known, strict=True):
        row = [f"{value:.6f}" for value in (*values, limit(values), exact)]
        table.add_row(place, *row)
    console.print(table)
    energy = limit(found["in the crystal"]) * UNIT
    console.print(f"energy of a pair of ions in the crystal: {energy:.3f} eV")
    draw(planes[0], np.tile(planes[1], (2, 1)))  # two periods of it
    console.print(f"potentials: {PICTURE}")


def draw(*planes: NDArray[np.float64]) -> None:
    """Draw a layer of the crystal, and a cut through the layers between the plates."""
    mpl.use("Agg")
    figure, axes = plt.subplots(
        1, 2, figsize=(12, 4.2), layout="constrained", width_ratios=(1, 2.2)
    )
    titles = "a layer of the crystal", "four layers between grounded plates"
    for axis, title, plane in zip(axes, titles, planes, strict=True):
        height, width = (length / POINTS[-1] * DISTANCE / angstrom for length in plane.shape)
        extent = (0, width, 0, height)
        image = axis.imshow(plane, "RdBu_r", vmin=-8, vmax=8, origin="lower", extent=extent)
        levels = [-4, -2, -1, 1, 2, 4]
        axis.contour(plane, levels, colors="k", linewidths=0.5, extent=extent)
        axis.set_title(title)
        axis.set_xlabel("ångström")
    figure.colorbar(image, ax=axes, label="volt", extend="both")
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=120)


if __name__ == "__main__":
    main()
