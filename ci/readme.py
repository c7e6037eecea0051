"""The README of the distributions: its links lead to the repository, also on an index's page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"\]\((?!https?:|#)([^)]+)\)")


def with_absolute_links(text: str, repository: str) -> str:
    """Return a text in Markdown whose links to files lead to the repository's main branch."""
    return LINK.sub(rf"]({repository}/blob/main/\1)", text)


class ReadmeHook(MetadataHookInterface):
    """Adds the README to the metadata while a distribution is built."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field ``readme``."""
        text = (Path(self.root) / "README.md").read_text()
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_absolute_links(text, metadata["urls"]["Source"]),
        }
