"""The options of a product that its user chooses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from dask_dgpu.algorithms.summa.wire import SparseThreshold, WireDtype

Strategy = Literal["auto", "row", "column", "summa", "inner"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


@dataclass(frozen=True)
class Options:
    """The family of meshes to choose from, and the form of pieces in messages.

    ``wire_dtype`` is None for that of the settings. Below ``sparse_threshold`` zeros are left out.
    """

    strategy: Strategy = "auto"
    wire_dtype: WireDtype | None = None
    sparse_threshold: SparseThreshold = None


DEFAULTS = Options()
