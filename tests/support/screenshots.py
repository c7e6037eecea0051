"""Screenshots of the built site: ``python -m tests.support.screenshots`` after ``make docs``."""

from __future__ import annotations

from pathlib import Path

from tests.support.browser import chromium

ROOT = Path(__file__).parents[2]
PAGES = {
    "landing": "index.html",
    "guide": "guide/explain.html",
    "notebook": "notebooks/01_quickstart.html",
}


def main() -> None:
    with chromium(1200, 800) as browser:
        for name, page in PAGES.items():
            browser.open(ROOT / "build/docs" / page)
            browser.screenshot(ROOT / "docs/images" / f"{name}.png")


if __name__ == "__main__":
    main()
