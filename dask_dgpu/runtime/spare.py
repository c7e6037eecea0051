"""Blocks that a kernel may overwrite: new memory costs a page fault every 4 KiB."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from graph_opt.model.layout import Index

Array = Any


@dataclass(frozen=True)
class Spare:
    """A block that a function may overwrite: nobody else has it, and nobody will read it."""

    block: Array


def is_alone(blocks: Mapping[Index, Array], place: Index) -> bool:
    """Whether a block owns its memory, and nothing but ``blocks`` refers to it.

    A view of it would, and so would a function that has kept it.
    """
    if _references(blocks, place) > ALONE or type(blocks[place]) is not np.ndarray:
        return False
    flags = blocks[place].flags
    return bool(flags.owndata and flags.writeable)


def _references(blocks: Mapping[Index, Array], place: Index) -> int:
    return sys.getrefcount(blocks[place])


ALONE = _references({(0,): np.empty(1)}, (0,))
"""The references that Python counts to an array which is in one mapping only."""
