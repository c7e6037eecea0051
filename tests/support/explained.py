"""What an explanation says, without the wrapping of its table."""

from __future__ import annotations

from typing import Any


def said(explanation: Any) -> str:
    """Return a line for each operation: its name, what computes it, why, and its shapes."""
    return "\n".join(
        f"{each.operation}: {each.by}: {each.why}: {each.summary}"
        for each in explanation.operations
    )
