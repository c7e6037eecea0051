"""Screenshots for the documentation: ``python -m tests.support.screenshots [site] [results]``.

Those of the site need ``make docs`` first; those of results compute what they show.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import dask.array as da
from PIL import Image

import dask_dgpu as dgpu
from tests.support.browser import Browser, chromium

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs/images"
PAGES = {
    "landing": "index.html",
    "guide": "guide/explain.html",
    "notebook": "notebooks/01_quickstart.html",
}
PICTURE_INTO_VIEW = """
document.querySelector("article .cell_output img")?.closest(".cell").scrollIntoView()
"""
"""Of a notebook its first picture."""

RESULT = """<!doctype html><meta charset="utf-8"><style>
body { background: white; color: black; font: 14px sans-serif; margin: 0 }
main { display: inline-block; padding: 12px }
td, th { padding: 3px 8px }
</style><main>"""
"""The beginning of a page that shows a result, as a light notebook would."""


def site(browser: Browser) -> None:
    """Take pages of the built site."""
    for name, page in PAGES.items():
        browser.open(ROOT / "build/docs" / page)
        browser.value(PICTURE_INTO_VIEW)
        picture = IMAGES / f"{name}.png"
        browser.screenshot(picture)
        shrink(picture)


def results(browser: Browser) -> None:
    """Take what notebooks display: an explanation, and the timeline of a profiler."""
    x = da.random.default_rng(0).random((1024, 1024), chunks=256)
    with dgpu.enable(local_ranks=4, when="always"):
        x = x.persist(scheduler="threads")
        y = da.fft.ifft2(da.exp(-(abs(da.fft.fft2(x @ x.T - 256)) ** 2))).real
        y.compute(scheduler="threads")  # plans and kernels are ready for the second time
        with dgpu.Profiler() as prof:
            y.compute(scheduler="threads")
        shown = {"explain": dgpu.explain(y)._repr_html_(), "timeline": prof.timeline().html()}
    for name, html in shown.items():
        picture = IMAGES / f"{name}.png"
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "page.html"
            page.write_text(RESULT + html)
            browser.open(page)
            browser.screenshot(picture, "main")
        shrink(picture)


def shrink(picture: Path) -> None:
    """Keep 128 colours of a picture."""
    Image.open(picture).convert("RGB").quantize(128).save(picture, optimize=True)


def main() -> None:
    takers = {"site": site, "results": results}
    with chromium(1200, 800) as browser:
        for name in sys.argv[1:] or takers:
            takers[name](browser)


if __name__ == "__main__":
    main()
