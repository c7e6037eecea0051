"""The built site: no warnings, no broken links, a page a function, nothing scrolls sideways."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.project.test_project import PUBLIC
from tests.support.browser import chromium

ROOT = Path(__file__).parents[2]
WIDTH = 1200
LONGEST_BUILD = 180
CUT_OFF = """
[...document.querySelectorAll("article pre, article table")]
    .filter(each => each.scrollWidth > each.clientWidth + 1)
    .map(each => each.innerText.slice(0, 60))
"""
"""The code and tables that do not fit in their width."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Links(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.links += [link for name in ("href", "src") if (link := values.get(name)) is not None]
        self.anchors |= {anchor for name in ("id", "name") if (anchor := values.get(name))}


@cache
def parsed(page: Path) -> Links:
    return Links(page.read_text())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-E"]
    begin = time.monotonic()
    done = subprocess.run(
        [*command, str(ROOT / "docs"), str(target)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - begin < LONGEST_BUILD
    return target


def pages(site: Path) -> list[Path]:
    found = (path.relative_to(site) for path in site.rglob("*.html"))
    return sorted(site / path for path in found if path.parts[0] not in ("_modules", "_static"))


def test_links(site: Path) -> None:
    broken = []
    for page in pages(site):
        for link in parsed(page).links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = page if not parts.path else (page.parent / unquote(parts.path)).resolve()
            if not target.exists():
                broken.append((page.name, link))
            elif parts.fragment and target.suffix == ".html":
                anchors = parsed(target).anchors
                if unquote(parts.fragment) not in anchors:
                    broken.append((page.name, link))
    assert broken == []


@pytest.mark.parametrize("name", PUBLIC)
def test_function_has_a_page_with_each_parameter_once(name: str, site: Path) -> None:
    text = (site / "api" / "generated" / f"{name}.html").read_text()
    assert f'id="{name}"' in text
    own = text[text.index(f'id="{name}"') :]
    for part in own.split('<dt class="sig '):  # the methods of a class have fields of their own
        fields = Counter(re.findall(r'<dt class="field-\w+">(\w+)', part))
        assert {field for field, times in fields.items() if times > 1} == set()


@pytest.mark.browser
def test_no_page_scrolls_sideways_and_no_code_is_cut_off(site: Path) -> None:
    wide, cut = {}, {}
    with chromium(WIDTH, 900) as browser:
        for page in pages(site):
            browser.open(page)
            name = str(page.relative_to(site))
            width = browser.value("document.documentElement.scrollWidth")
            if width > WIDTH:
                wide[name] = width
            if texts := browser.value(CUT_OFF):
                cut[name] = texts
    assert wide == {}
    assert cut == {}
