"""Dataclasses that are pickled without their cached properties."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, cast


class Bare:
    """A dataclass whose cached properties are not pickled: to recompute them takes less time."""

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(cast(Any, self))}
