"""The options of a product that its user chooses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from dask_dgpu.algorithms.summa.wire import WireDtype

Strategy = Literal["auto", "row", "column", "summa", "inner"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


@dataclass(frozen=True)
class Options:
    """The family of meshes to choose from, and the form of pieces in messages.

    ``wire_dtype`` is None for that of the settings. Pieces travel without their zeros if fewer than
    ``sparse_threshold`` of the elements are not zero; ``"auto"`` chooses it by the cost model.
    """

    strategy: Strategy = "auto"
    wire_dtype: WireDtype | None = None
    sparse_threshold: float | Literal["auto"] | None = None


DEFAULTS = Options()
