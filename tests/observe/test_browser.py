"""What notebooks display, in a real browser, on light and on dark pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import pytest

import dask_dgpu as dgpu
from tests.support.browser import Browser, chromium

pytestmark = [pytest.mark.browser, pytest.mark.slow]

X = da.ones((12, 12), chunks=3)
THEMES = {"light": ("white", "black"), "dark": ("#111", "#eee")}
PAGE = """<!doctype html><meta charset="utf-8">
<body style="background:{};color:{}"><main>{}</main></body>"""
WIDTHS = "[...document.querySelectorAll('.dgpu-bar > span')].map(each => each.offsetWidth)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium(1200, 800) as found:
        yield found


def opened(browser: Browser, path: Path, html: str, theme: str) -> None:
    assert "<script" not in html
    path.write_text(PAGE.format(*THEMES[theme], html))
    browser.open(path)


def text_of(browser: Browser) -> str:
    return str(browser.value("document.querySelector('main').innerText"))


@pytest.mark.parametrize("theme", THEMES)
def test_explain(browser: Browser, tmp_path: Path, theme: str) -> None:
    with dgpu.enable(local_ranks=3, when="always", memory_limit="1 MiB"):
        found = dgpu.explain(da.exp(X @ X.T - 64).sum())
    opened(browser, tmp_path / "explain.html", found._repr_html_(), theme)
    rows = browser.value("document.querySelectorAll('.dgpu-explain tbody tr').length")
    assert rows == len(found.operations) + 2  # the gang, the total
    text = text_of(browser)
    assert all(each.operation in text for each in found.operations)
    assert max(browser.value(WIDTHS)) > 20
    colour = browser.value("getComputedStyle(document.querySelector('.dgpu-explain td')).color")
    assert colour == {"light": "rgb(0, 0, 0)", "dark": "rgb(238, 238, 238)"}[theme]


@pytest.mark.parametrize("theme", THEMES)
def test_gpu_status_and_health(browser: Browser, tmp_path: Path, theme: str) -> None:
    health = dgpu.Health({"tcp://a": "ok", "tcp://b": "did not answer"})
    html = dgpu.gpu_status()._repr_html_() + health._repr_html_()
    opened(browser, tmp_path / "status.html", html, theme)
    assert "host memory" in text_of(browser)
    assert browser.value("document.querySelectorAll('.dgpu-status tbody tr').length") == 1
    assert browser.value("document.querySelectorAll('.dgpu-health tr').length") == 2
    assert len(browser.value(WIDTHS)) >= 4


def test_profiler(browser: Browser, tmp_path: Path) -> None:
    with dgpu.enable(local_ranks=3, when="always"), dgpu.Profiler() as prof:
        (X @ X.T).sum().compute(scheduler="threads")
    opened(browser, tmp_path / "profile.html", prof._repr_html_(), "dark")
    assert "matmul" in text_of(browser)
    images = "[...document.querySelectorAll('svg image')]"
    widths: Any = browser.value(f"{images}.map(each => each.getBoundingClientRect().width)")
    assert max(widths) > 5
