"""The graphs that the scheduler knows."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

from zict import LRU

KEPT_BYTES = 64 * 2**20
"""Bytes of optimized graphs that are kept for others with the same structure."""


def _last() -> MutableMapping[Any, bytes]:
    return LRU(KEPT_BYTES, {}, weight=lambda _, text: len(text))


@dataclass(frozen=True)
class Structures:
    """Graphs with known structures, those used last, pickled with numbered tokens.

    ``sources`` are the keys that may be of blocks in memory, by the digest of a graph; ``graphs``
    are optimized, with what their new tokens stand for, and empty if one cannot be kept.
    """

    sources: MutableMapping[bytes, bytes] = field(default_factory=_last)
    graphs: MutableMapping[Any, bytes] = field(default_factory=_last)
