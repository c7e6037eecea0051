"""Dataclasses that keep what is computed from their fields, and travel without it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, cast


class Bare:
    """A dataclass with cached properties, which are computed again where it is unpickled.

    That takes less time than to send them.
    """

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(cast(Any, self))}
