"""The edges in a photograph that is larger than a chunk.

A cup of coffee ships with scikit-image. It is cut into horizontal bands. Each colour is
blurred by a Gaussian, a convolution in groups. Sobel's kernels then give the slopes along rows and
columns of the sum of the colours, and their length shows the edges. Bands exchange the rows around
them; all steps are one program.

It prints what ``examples/output/edges.txt`` shows, and draws ``build/edges.png``.
"""

from __future__ import annotations

from pathlib import Path

import dask.array as da
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from scipy import ndimage
from skimage import data

import dask_dgpu as dgpu
from dask_dgpu.environment.gpus import count_gpus

BAND = 100  # rows of a chunk
WIDTH = 1.5  # of the Gaussian, in pixels
REACH = 5  # pixels to either side of its middle
WORKERS = count_gpus() or 4
PICTURE = Path("build/edges.png")

Floats = NDArray[np.float32]


def photograph() -> Floats:
    """Load the photograph as an image of three channels, each value in [0, 1]."""
    pixels: NDArray[np.uint8] = data.coffee()
    return np.moveaxis(pixels, -1, 0)[None].astype(np.float32) / np.float32(255)


def gaussian() -> Floats:
    """Return a kernel for each of three channels."""
    line = np.exp(-(np.arange(-REACH, REACH + 1) ** 2) / (2 * WIDTH**2))
    kernel = np.outer(line, line) / line.sum() ** 2
    return np.broadcast_to(kernel, (3, 1, *kernel.shape)).astype(np.float32)


def sobel() -> Floats:
    """Return two kernels that add the slopes of three channels along rows, and along columns."""
    down = np.outer([-1, 0, 1], [1, 2, 1]) / 8
    return np.stack([[down] * 3, [down.T] * 3]).astype(np.float32)


def edges(x: da.Array) -> da.Array:
    """Return the length of the slope of each pixel."""
    soft = dgpu.conv2d(x, gaussian(), padding="same", groups=3)
    slopes = dgpu.conv2d(soft, sobel(), padding="same")
    return da.sqrt((slopes**2).sum(axis=1))


def main() -> None:
    """Find the edges, compare with SciPy, and draw."""
    console = Console(highlight=False, soft_wrap=True)
    picture = photograph()
    with dgpu.start(n_workers=WORKERS, dashboard_address=":0") as client:
        dgpu.enable(client, when="always")
        x = da.from_array(picture, chunks=(1, 3, BAND, -1)).to_backend("dgpu").persist()
        found = edges(x)
        console.rule("explain")
        console.print(str(dgpu.explain(found)))
        result = found.to_backend("numpy").compute()[0]
    console.rule()
    difference = float(np.abs(result - wanted(picture)).max())
    console.print(f"largest difference to SciPy's filters: {difference:.1e}")
    draw(picture[0], result)
    console.print(f"photograph and edges: {PICTURE}")


def wanted(picture: Floats) -> NDArray[np.float64]:
    """Find the edges with SciPy."""
    kernel = gaussian()[0, 0].astype(float)
    grey = np.zeros(picture.shape[2:])
    for each in picture[0]:
        grey += ndimage.correlate(each.astype(float), kernel, mode="constant")
    down, right = (
        ndimage.correlate(grey, each[0].astype(float), mode="constant") for each in sobel()
    )
    return np.hypot(down, right)


def draw(picture: Floats, result: NDArray[np.float64]) -> None:
    """Draw the photograph beside its edges."""
    mpl.use("Agg")
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    axes[0].imshow(np.moveaxis(picture, 0, -1))
    inner = result[2:-2, 2:-2]  # beyond the photograph is darkness: its frame is an edge
    axes[1].imshow(inner, cmap="gray_r", vmax=np.quantile(inner, 0.995))
    for axis, title in zip(axes, ("photograph", "edges"), strict=True):
        axis.set_title(title)
        axis.set_axis_off()
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=120)


if __name__ == "__main__":
    main()
