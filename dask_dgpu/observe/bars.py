"""Bars as text and as HTML without scripts, which light and dark pages show alike."""

from __future__ import annotations

from html import escape

BLUE, ORANGE, GREEN, RED, GREY = "#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#a0a0a0"
"""Colours that are visible on light and on dark pages."""

FULL, EMPTY = "█", "░"


def text_bar(shares: dict[str, float], width: int) -> str:
    """Return a bar of this many letters: a share of it for each letter, the rest empty."""
    text, done = "", 0.0
    for letter, share in shares.items():
        done = min(1.0, done + max(0.0, share))
        text += letter * (round(done * width) - len(text))
    return text + EMPTY * (width - len(text))


def html_bar(parts: dict[str, float], title: str = "") -> str:
    """Return a bar with a share of its width in each colour."""
    done, found = 0.0, []
    for colour, share in parts.items():
        share = min(1.0 - done, max(0.0, share))
        done += share
        found.append(
            f"<span style='display:block;height:100%;width:{100 * share:.3g}%;"
            f"background:{colour}'></span>"
        )
    tip = f" title='{escape(title, quote=True)}'" if title else ""
    return (
        f"<span class='dgpu-bar'{tip} style='display:flex;height:5px;min-width:5em;"
        f"background:{GREY}44;margin-top:2px'>{''.join(found)}</span>"
    )
