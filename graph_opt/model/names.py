"""Names of layers in messages, and of the tasks of gangs."""

from __future__ import annotations

import re
from typing import Any

STAGE = "dgpu-stage"
GANG = "dgpu-gang"
TURN = "dgpu-turn"

LEVEL = re.compile(r"[.][0-9]+(?=-)")
"""What names the steps before the last in the work for one layer: ``cumsum.0-53fa9c...``."""


def label(name: str) -> str:
    """Return a layer's name with a short token."""
    operation, dash, token = name.rpartition("-")
    return f"{operation}{dash}{token[:8]}" if dash else name


def is_gang(key: Any) -> bool:
    """Whether a key belongs to a ``gang`` task."""
    return type(key) is tuple and type(key[0]) is str and key[0].startswith(GANG)


def is_stage(key: Any) -> bool:
    """Whether a key belongs to a ``stage`` task."""
    return type(key) is tuple and type(key[0]) is str and key[0].startswith(STAGE)


def serves(key: Any) -> bool:
    """Whether a key belongs to a ``stage`` or ``turn`` task, which only serve a gang."""
    return is_stage(key) or (type(key) is tuple and str(key[0]).startswith(TURN))
