"""The options of a product that its user chooses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from dask_dgpu.algorithms.summa.wire import WireDtype

Strategy = Literal["auto", "row", "column", "summa", "inner"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


@dataclass(frozen=True)
class Options:
    """The family of meshes to choose from, and the precision of pieces in messages.

    ``wire_dtype`` is None for that of the settings.
    """

    strategy: Strategy = "auto"
    wire_dtype: WireDtype | None = None


DEFAULTS = Options()
