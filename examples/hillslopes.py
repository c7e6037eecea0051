"""Hillslopes that spread as heat does: the soil of a real terrain creeps downhill.

The heights of mountains near Jacksboro, Tennessee, ship with Matplotlib. Where soil creeps in
proportion to the slope, heights obey the heat equation: an explicit step is a stencil, and
many are one call of ``dgpu.stencil``. Soil on steep slopes moves faster than that: what
it conducts depends on the slope itself, so a step needs fluxes between cells, which no
stencil of fixed weights has. It is written in slices of NumPy and given to ``da.map_overlap``.

J. J. Roering, J. W. Kirchner and W. E. Dietrich, "Evidence for nonlinear, diffusive sediment
transport on hillslopes and implications for landscape morphology", Water Resources Research
35 (1999): the law of transport, and its constants as found in the Oregon Coast Range.

It prints what ``examples/output/hillslopes.txt`` shows, and draws ``build/hillslopes.png``.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import dask.array as da
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.cbook import get_sample_data
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LightSource, Normalize
from numpy.typing import NDArray
from rich.console import Console
from scipy.ndimage import gaussian_filter

import dask_dgpu as dgpu
from dask_dgpu.environment.gpus import count_gpus

DIFFUSIVITY = 0.0032  # square metres a year
CRITICAL = 1.25  # the slope, in metres a metre, that holds no soil
STEP = 40_000.0  # years
STEPS = 100
DEGREE = 111_200.0  # metres, along a meridian
WORKERS = count_gpus() or 4
PICTURE = Path("build/hillslopes.png")

with np.load(get_sample_data("jacksboro_fault_dem.npz", asfileobj=False)) as dem:
    TERRAIN: NDArray[np.float64] = dem["elevation"].astype(float)  # metres, north at the top
    DY = DEGREE * float(dem["dy"])
    DX = DEGREE * float(dem["dx"]) * np.cos(np.radians((dem["ymin"] + dem["ymax"]) / 2))


def slopes(z: Any) -> tuple[Any, Any, Any]:
    """Return slopes between cells, along both axes, and their square where four cells meet."""
    south, east = np.diff(z, axis=0) / DY, np.diff(z, axis=1) / DX
    square = ((south[:, 1:] + south[:, :-1]) ** 2 + (east[1:] + east[:-1]) ** 2) / 4
    return south, east, square


def creep(z: Any) -> Any:
    """Return the heights a step later, of all cells but those at the edges."""
    south, east, square = slopes(z)
    k = DIFFUSIVITY / (1 - square / CRITICAL**2)
    south = (k[:, 1:] + k[:, :-1]) / 2 * south[:, 1:-1]
    east = (k[1:] + k[:-1]) / 2 * east[1:-1]
    gain = np.diff(south, axis=0) / DY + np.diff(east, axis=1) / DX
    return z[1:-1, 1:-1] + STEP * gain


def crept(z: da.Array) -> da.Array:
    """Let soil creep, with ghost cells one deep: none leaves. This is all plain Dask."""
    for _ in range(STEPS):
        z = da.map_overlap(
            creep, z, depth=1, boundary="reflect", trim=False, dtype=z.dtype, meta=z._meta
        )
    return z


def diffused(z: da.Array) -> da.Array:
    """Let soil creep in proportion to the slope: the heat equation."""
    south, east = DIFFUSIVITY * STEP / DY**2, DIFFUSIVITY * STEP / DX**2
    kernel = [[0, south, 0], [east, 1 - 2 * south - 2 * east, east], [0, south, 0]]
    return dgpu.stencil(z, kernel, boundary="reflect", iterations=STEPS)


def bound_of_step(z: NDArray[np.float64]) -> float:
    """Return a bound for stability, in years: that of fluxes linearized at the steepest slope."""
    square = slopes(z)[2].max() / CRITICAL**2
    most = DIFFUSIVITY * (1 + square) / (1 - square) ** 2
    return float(1 / (2 * most * (1 / DX**2 + 1 / DY**2)))


def timed(z: da.Array) -> tuple[float, NDArray[np.float64]]:
    """Return the seconds from the first step written down to the heights on the host."""
    start = time.perf_counter()
    result = crept(z).to_backend("numpy").compute()
    return time.perf_counter() - start, result


def main() -> None:
    """Let soil creep for millions of years, both ways, and draw."""
    console = Console(highlight=False, soft_wrap=True)
    with dgpu.start(n_workers=WORKERS, dashboard_address=":0") as client:
        z = da.from_array(TERRAIN, chunks=(172, 202)).to_backend("dgpu").persist()
        dgpu.disable()
        plain, wanted = timed(z)
        with dgpu.enable(client, when="always"):
            console.rule("explain")
            for heights in (crept(z), diffused(z)):
                console.print(str(dgpu.explain(heights)))
            gang, steep = timed(z)
            linear = diffused(z).to_backend("numpy").compute()
    console.rule()
    bound = bound_of_step(TERRAIN)
    console.print(f"{STEPS} steps of {STEP:,.0f} years; the bound for stability is {bound:,.0f}")
    same = np.array_equal(steep, wanted)
    console.print(f"plain Dask {plain:.1f} s, dask_dgpu {gang:.1f} s; same bits: {same}")
    for name, z in (("today", TERRAIN), ("heat equation", linear), ("faster where steep", steep)):
        slope = slopes(z)[2].max() ** 0.5
        console.print(f"{name}: mean height {z.mean():.9f} m, steepest slope {slope:.2f}")
    width = (2 * DIFFUSIVITY * STEP * STEPS) ** 0.5  # metres
    gaussian = gaussian_filter(TERRAIN, (width / DY, width / DX), truncate=8)
    difference = np.abs(linear - gaussian).max()
    console.print(f"heat equation and SciPy's Gaussian of {width:.0f} m: within {difference:.1f} m")
    draw(steep, linear)
    console.print(f"terrain: {PICTURE}")


def draw(steep: NDArray[np.float64], linear: NDArray[np.float64]) -> None:
    """Draw the terrain now and later, and by how much it is higher than by the heat equation."""
    mpl.use("Agg")
    figure, axes = plt.subplots(1, 3, figsize=(12, 4.2), layout="constrained", sharey=True)
    extent = (0, TERRAIN.shape[1] * DX / 1000, 0, TERRAIN.shape[0] * DY / 1000)
    heights = ScalarMappable(Normalize(-300, 1300), "gist_earth")  # all above the blue of it
    light = LightSource(azdeg=315, altdeg=45)
    for axis, z in zip(axes, (TERRAIN, steep), strict=False):
        colours = heights.to_rgba(z)[..., :3]
        axis.imshow(light.shade_rgb(colours, z, vert_exag=2, dx=DX, dy=DY), extent=extent)
    figure.colorbar(heights, ax=axes[:2], label="height, m").ax.set_ylim(200, 1100)
    lead = axes[2].imshow(steep - linear, "RdBu_r", vmin=-3, vmax=3, extent=extent)
    figure.colorbar(lead, ax=axes[2], label="difference, m", extend="both")
    titles = "today", f"in {STEP * STEPS / 1e6:g} million years", "minus the heat equation"
    for axis, title in zip(axes, titles, strict=True):
        axis.set(title=title, xlabel="east, km")
    axes[0].set_ylabel("north, km")
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=100)


if __name__ == "__main__":
    main()
