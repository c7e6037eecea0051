"""Pages link a word of the glossary at its first use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
GLOSSARY = DOCS / "guide/glossary.md"
PAGES = sorted({*DOCS.glob("guide/*.md"), *DOCS.glob("getting-started/*.md")} - {GLOSSARY})
WORDS = {
    "gang": "gangs?",
    "rank": "ranks?",
    "mesh": "mesh(es)?",
    "region": "regions?",
    "piece": "pieces?",
    "panel": "panels?",
}

ROLE = r"\{term\}`(?:[^`<]*<)?(\w+)>?`"
NO_PROSE = re.compile(
    r"^(`{3,}).*?^\1|<!--.*?-->|^#.*?$|`[^`]*`|\[[^\]]*\]\([^)]*\)|https?://\S+", re.M | re.S
)
"""Code, comments, headings and links."""


def test_the_glossary_has_these_words() -> None:
    assert re.findall(r"^(\w+)$", GLOSSARY.read_text(), re.M) == [*WORDS]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_links_the_first_use(page: Path) -> None:
    marked = re.sub(ROLE, r"@\1", page.read_text())
    prose = NO_PROSE.sub("", marked)
    for word, forms in WORDS.items():
        first = re.search(rf"@?\b{forms}\b", prose, re.I)
        assert first is None or first[0] == f"@{word}", first
