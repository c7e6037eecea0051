"""Eigen-patches of photographs: one covariance, by plain Dask and by dask_dgpu.

Four photographs that ship with scikit-image are cut into overlapping patches,
one patch a row. The leading eigenvectors of the patches' covariance are the
colours, edges and waves that natural images are made of. The covariance is a
product with a very long inner dimension, ``x.T @ x``, in plain Dask code; the
same line runs twice, with and without dask_dgpu.

It prints what the README shows, and draws ``build/eigen_patches.png``.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path
from statistics import median

import dask.array as da
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from distributed import wait
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from skimage import data

import dask_dgpu as dgpu
from dask_dgpu.environment.gpus import count_gpus

PHOTOGRAPHS = ("astronaut", "chelsea", "coffee", "rocket")
SIDE = 12  # pixels along a patch
STRIDE = 2  # pixels from one patch to the next
BAND = 16  # rows of patches in one chunk
WORKERS = count_gpus() or 4
REPETITIONS = 5
PICTURE = Path("build/eigen_patches.png")


@dataclass(frozen=True)
class Band:
    """Some rows of patches of one photograph: the rows of one chunk."""

    photograph: str
    first: int
    last: int
    patches: int


def bands() -> Iterator[Band]:
    """Divide all photographs into bands.

    Yields
    ------
    Band
        The bands, photograph by photograph, from top to bottom.
    """
    for name in PHOTOGRAPHS:
        height, width = ((pixels - SIDE) // STRIDE + 1 for pixels in photograph(name).shape[:2])
        for first in range(0, height, BAND):
            last = min(first + BAND, height)
            yield Band(name, first, last, (last - first) * width)


def photograph(name: str) -> NDArray[np.float32]:
    """Load a photograph: rows, columns and three colours, each in [0, 1]."""
    pixels: NDArray[np.uint8] = getattr(data, name)()
    return pixels.astype(np.float32) / np.float32(255)


def cut(band: Band, colour: int) -> NDArray[np.float32]:
    """Cut one colour of a band into patches, one a row."""
    windows = np.lib.stride_tricks.sliding_window_view(
        photograph(band.photograph)[:, :, colour], (SIDE, SIDE)
    )[::STRIDE, ::STRIDE]
    return np.ascontiguousarray(windows[band.first : band.last]).reshape(-1, SIDE * SIDE)


def patch_matrix() -> da.Array:
    """Let the workers cut the patches and centre them.

    Returns
    -------
    dask.array.Array
        One patch a row; a chunk is one colour of one band.
    """
    parts = list(bands())

    def cut_block(block_id: tuple[int, int]) -> NDArray[np.float32]:
        return cut(parts[block_id[0]], block_id[1])

    patches = da.map_blocks(
        cut_block,
        chunks=(tuple(part.patches for part in parts), (SIDE * SIDE,) * 3),
        dtype=np.float32,
        meta=np.empty((0, 0), np.float32),
    ).to_backend("dgpu")
    return patches - patches.mean(axis=0)


def numpy_covariance() -> NDArray[np.float64]:
    """Compute the covariance by NumPy alone, in double precision."""
    patches = np.concatenate(
        [np.hstack([cut(band, colour) for colour in range(3)]) for band in bands()]
    ).astype(np.float64)
    patches -= patches.mean(axis=0)
    return patches.T @ patches / len(patches)


def covariance(x: da.Array) -> da.Array:
    """Write down the covariance of centred rows. This is all plain Dask."""
    return da.matmul(x.T, x) / len(x)


@dataclass(frozen=True)
class Run:
    """What one way of computing the covariance gave."""

    explanation: str
    seconds: list[float]
    result: NDArray[np.float32]


def run(patches: da.Array) -> Run:
    """Compute the covariance once to warm up, then several times by the clock.

    The clock covers the product alone: the patches are on the workers before
    it starts, the result is on the host when it stops. Each repetition has its
    own copy under a fresh name, for Dask reuses the results that it knows.
    """
    seconds = []
    for _ in range(REPETITIONS + 1):
        name = f"patches-{uuid.uuid4().hex}"
        x = da.map_blocks(methodcaller("copy"), patches, dtype=patches.dtype, name=name).persist()
        wait(x)
        product = covariance(x)
        explanation = str(dgpu.explain(product))
        start = time.perf_counter()
        result = product.to_backend("numpy").compute()
        seconds.append(time.perf_counter() - start)
    return Run(explanation, seconds[1:], result)


def save_picture(matrix: NDArray[np.float32]) -> Path:
    """Draw the leading eigenvectors of a covariance as patches."""
    mpl.use("Agg")
    vectors = np.linalg.eigh(matrix)[1][:, ::-1].T
    vectors *= np.where(vectors.sum(axis=1) < 0, -1, 1)[:, None]  # either sign would do
    figure, axes = plt.subplots(4, 8, figsize=(8, 4.4), layout="constrained")
    figure.suptitle(f"Leading eigen-patches of {', '.join(PHOTOGRAPHS)}")
    for axis, vector in zip(axes.flat, vectors, strict=False):
        patch = np.moveaxis(vector.reshape(3, SIDE, SIDE), 0, -1)
        axis.imshow(0.5 + 0.5 * patch / np.abs(patch).max(), interpolation="nearest")
        axis.axis("off")
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=150)
    return PICTURE


def report(console: Console, runs: dict[str, Run]) -> None:
    """Print times and differences side by side, and which way was faster."""
    reference = numpy_covariance()
    table = Table(title=f"Covariance, {WORKERS} workers, median of {REPETITIONS}")
    for heading in ("", "seconds", "fastest", "slowest", "largest difference to NumPy"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, way in runs.items():
        difference = np.abs(way.result - reference).max()
        times = (median(way.seconds), min(way.seconds), max(way.seconds))
        table.add_row(name, *(f"{second:.3f}" for second in times), f"{difference:.1e}")
    console.print(table)
    (fast, least), (_, most) = sorted(
        ((name, median(way.seconds)) for name, way in runs.items()), key=lambda pair: pair[1]
    )
    console.print(f"{fast} is faster here, by a factor of {most / least:.2f}.")


def main() -> None:
    """Run the demonstration."""
    console = Console()
    with dgpu.start(n_workers=WORKERS) as client:
        x = patch_matrix().persist()
        console.print(
            f"{x.shape[0]:,} patches of {SIDE} x {SIDE} pixels in 3 colours from "
            f"{len(PHOTOGRAPHS)} photographs: {x.dtype} {x.shape} in {x.npartitions} chunks",
            soft_wrap=True,
        )
        dgpu.disable()
        runs = {"plain Dask": run(x)}
        with dgpu.enable(client):
            runs["dask_dgpu"] = run(x)
    for name, way in runs.items():
        console.rule(f"explain, {name}")
        console.print(way.explanation, markup=False, highlight=False, soft_wrap=True)
    console.rule()
    report(console, runs)
    console.print(f"Leading eigen-patches: {save_picture(runs['dask_dgpu'].result)}")


if __name__ == "__main__":
    main()
