"""Screenshots of the built site: ``python -m tests.support.screenshots`` after ``make docs``."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from tests.support.browser import chromium

ROOT = Path(__file__).parents[2]
PAGES = {
    "landing": "index.html",
    "guide": "guide/explain.html",
    "notebook": "notebooks/01_quickstart.html",
}
PICTURE_INTO_VIEW = """
document.querySelector("article .cell_output img")?.closest(".cell").scrollIntoView()
"""
"""Of a notebook its first picture."""


def main() -> None:
    with chromium(1200, 800) as browser:
        for name, page in PAGES.items():
            browser.open(ROOT / "build/docs" / page)
            browser.value(PICTURE_INTO_VIEW)
            picture = ROOT / "docs/images" / f"{name}.png"
            browser.screenshot(picture)
            Image.open(picture).convert("RGB").quantize(128).save(picture, optimize=True)


if __name__ == "__main__":
    main()
