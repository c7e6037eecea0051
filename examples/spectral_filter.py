"""A photograph of the sky, blurred and sharpened by its spectrum.

The Hubble Deep Field ships with scikit-image. It is cut into horizontal bands,
as a telescope would deliver it. A blur by a Gaussian is a product of spectra, so
it costs the same however wide it is; what it takes away, added once more, sharpens
the picture. Dask alone refuses the transform, since both axes would have to be
single chunks; with dask_dgpu the same two lines run on all workers.

It prints what ``examples/output/spectral_filter.txt`` shows, and draws
``build/spectral_filter.png``.
"""

from __future__ import annotations

from pathlib import Path

import dask.array as da
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from scipy.ndimage import gaussian_filter
from skimage import data

import dask_dgpu as dgpu
from dask_dgpu.environment.gpus import count_gpus

BAND = 109  # rows of a chunk
WIDTH = 3.0  # of the Gaussian, in pixels
STRENGTH = 1.5  # of what is added to sharpen
WORKERS = count_gpus() or 4
PICTURE = Path("build/spectral_filter.png")


def photograph() -> NDArray[np.float32]:
    """Load the photograph: three colours, rows and columns, each value in [0, 1]."""
    pixels: NDArray[np.uint8] = data.hubble_deep_field()
    return np.moveaxis(pixels, -1, 0).astype(np.float32) / np.float32(255)


def bands() -> da.Array:
    """Let the workers load the photograph, each the bands that it needs."""
    shape = photograph().shape

    def band(block_id: tuple[int, int, int]) -> NDArray[np.float32]:
        first = block_id[1] * BAND
        return photograph()[:, first : first + BAND]

    chunks = da.core.normalize_chunks((3, BAND, -1), shape)
    return da.map_blocks(band, chunks=chunks, dtype=np.float32, meta=np.empty((0, 0, 0), "f4"))


def blurred(x: da.Array) -> da.Array:
    """Blur by a Gaussian, as if the picture went on periodically. This is all plain Dask."""
    rows, columns = x.shape[-2:]
    spectrum = da.fft.rfft2(x, axes=(-2, -1))
    squares = (np.fft.fftfreq(rows)[:, None] ** 2 + np.fft.rfftfreq(columns)[None, :] ** 2).astype(
        x.dtype
    )
    gaussian = np.exp(-2 * (np.pi * WIDTH) ** 2 * squares)
    # the response is cut as the spectrum is
    response = da.from_array(gaussian, chunks=spectrum.chunks[-2:]).to_backend("dgpu")
    return da.fft.irfft2(spectrum * response, s=(rows, columns), axes=(-2, -1))


def main() -> None:
    """Blur, sharpen, compare with SciPy, and draw."""
    console = Console(highlight=False, soft_wrap=True)
    picture = photograph()
    with dgpu.start(n_workers=WORKERS, dashboard_address=":0") as client:
        dgpu.enable(client, when="always")
        x = bands().to_backend("dgpu").persist()
        soft = blurred(x)
        sharp = x + STRENGTH * (x - soft)
        console.rule("explain")
        console.print(str(dgpu.explain(sharp)))
        results = [z.to_backend("numpy").compute() for z in (soft, sharp)]
    console.rule()
    wanted = gaussian_filter(picture.astype(float), WIDTH, mode="wrap", axes=(1, 2), truncate=8)
    difference = float(np.abs(results[0] - wanted).max())
    console.print(f"largest difference to SciPy's filter in the plane: {difference:.1e}")
    draw(picture, *results)
    console.print(f"photograph, blurred, sharpened: {PICTURE}")


def draw(*pictures: NDArray[np.float32]) -> None:
    """Draw a corner of each picture beside the others."""
    mpl.use("Agg")
    figure, axes = plt.subplots(1, len(pictures), figsize=(12, 4.3), layout="constrained")
    titles = ("photograph", f"blurred by {WIDTH:g} pixels", "sharpened")
    for axis, title, picture in zip(axes, titles, pictures, strict=True):
        axis.imshow(np.moveaxis(picture[:, 300:700, 300:700], 0, -1).clip(0, 1))
        axis.set_title(title)
        axis.set_axis_off()
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=120)


if __name__ == "__main__":
    main()
