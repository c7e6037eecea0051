"""The graphs that the scheduler knows."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zict import LRU

from dask_dgpu.runtime.program import Program

KEPT_BYTES = 64 * 2**20
"""Bytes of optimized graphs that are kept for others with the same structure."""


@dataclass(frozen=True)
class Kept:
    """An optimized graph, pickled with numbered tokens, of so many bytes with its programs.

    The text is empty if it cannot be kept. It has references to the ``programs``, by name. New
    tokens ``stand_for`` others.
    """

    text: bytes
    stand_for: Mapping[bytes, Sequence[bytes]] = field(default_factory=dict)
    programs: Mapping[str, Program] = field(default_factory=dict)
    nbytes: int = 0


def _last_texts() -> MutableMapping[Any, bytes]:
    return LRU(KEPT_BYTES, {}, weight=lambda _, text: len(text))


def _last_graphs() -> MutableMapping[Any, Kept]:
    return LRU(KEPT_BYTES, {}, weight=lambda _, kept: kept.nbytes)


@dataclass(frozen=True)
class Structures:
    """Graphs with known structures, those used last.

    ``sources`` are the keys that may be of blocks in memory, by the digest of a graph, pickled;
    ``graphs`` are optimized.
    """

    sources: MutableMapping[bytes, bytes] = field(default_factory=_last_texts)
    graphs: MutableMapping[Any, Kept] = field(default_factory=_last_graphs)
