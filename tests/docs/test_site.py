"""The built site: no warnings, no broken links, a page for each function."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.project.test_project import PUBLIC

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
