"""The layout of the built site in a browser: narrow and wide windows, light and dark pages."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.docs.test_site import pages
from tests.support.browser import Browser, chromium

NARROW, WIDE = 400, 1200
THEMES = ("light", "dark")
FACTS = (Path(__file__).parent / "facts.js").read_text()
SET_THEME = "Object.assign(document.documentElement.dataset, {{theme: '{0}', mode: '{0}'}})"
STILL = """
document.head.append(Object.assign(document.createElement("style"),
    {textContent: "*, ::before, ::after {transition: none !important}"}))
"""
"""Without it, colours change over some frames."""

CHART = 'article img[src$=".svg"]'
SHOWN = {
    "index.html": "article",
    "guide/explain.html": "article pre",
    "guide/accelerated.html": "article table",
    "performance.html": CHART,
    "notebooks/10_profiling.html": "article figcaption",
}
"""Pages to look at, and the part of each that is in the middle of its picture."""

LEAST_CONTRAST = 4.5
"""Of text and its background, as the Web Content Accessibility Guidelines ask for."""

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]


def shown(browser: Browser, page: Path, theme: str) -> Any:
    """Open a page and return what it looks like."""
    browser.open(page)
    browser.value(STILL)
    browser.value(SET_THEME.format(theme))
    found = browser.value(FACTS)
    assert found is not None, page
    return found


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_pages_fit_and_boxes_scroll(site: Path, width: int) -> None:
    faults: dict[str, Any] = {}
    with chromium(width, 900) as browser:
        for page in pages(site):
            found, name = shown(browser, page, "light"), str(page.relative_to(site))
            if found["width"] > width:
                faults[name, "scrolls sideways"] = found["width"]
            kinds = ("cut", "broken", "scrolled") if width == WIDE else ("cut", "broken")
            faults |= {(name, kind): found[kind][:5] for kind in kinds if found[kind]}
    assert faults == {}


@pytest.mark.parametrize("theme", THEMES)
def test_text_is_legible(site: Path, theme: str) -> None:
    pale: dict[str, Any] = {}
    with chromium(WIDE, 900) as browser:
        for page in pages(site):
            found, name = shown(browser, page, theme), str(page.relative_to(site))
            assert (found["background"] > 0.5) == (theme == "light"), name
            if found["pale"]:
                pale[name] = found["pale"][:5]
    assert pale == {}


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_pictures(site: Path, width: int, theme: str, tmp_path: Path) -> None:
    """Take pictures to look at, into the folder of $SCREENSHOTS if it is set, and check charts."""
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
    with chromium(width, 900) as browser:
        for name, part in SHOWN.items():
            shown(browser, site / name, theme)
            browser.value(f"document.querySelector('{part}').scrollIntoView({{block: 'center'}})")
            picture = folder / f"{name.replace('/', '-')}-{width}-{theme}.png"
            browser.screenshot(picture)
            assert pixels(picture).shape == (900, width, 3)
        shown(browser, site / "performance.html", theme)
        chart = folder / f"chart-{width}-{theme}.png"
        browser.screenshot(chart, CHART)
    light = luminance(pixels(chart))
    back, front = np.median(light), light[np.argmax(abs(light - np.median(light)))]
    assert (back > 0.5) == (theme == "light")
    assert contrast(back, front) > LEAST_CONTRAST
    assert pixels(chart).shape[1] > 600  # its letters are 10 pixels high, or more


def pixels(picture: Path) -> Any:
    with Image.open(picture) as image:
        return np.asarray(image.convert("RGB"))


def luminance(colours: Any) -> Any:
    """Return the relative luminance of each pixel, in one row."""
    x = colours.reshape(-1, 3) / 255
    linear = np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def contrast(x: float, y: float) -> float:
    return (max(x, y) + 0.05) / (min(x, y) + 0.05)
