"""The options of a product that its user chooses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Strategy = Literal["auto", "row", "column", "summa", "inner"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


@dataclass(frozen=True)
class Options:
    """The family of meshes to choose from."""

    strategy: Strategy = "auto"


DEFAULTS = Options()
