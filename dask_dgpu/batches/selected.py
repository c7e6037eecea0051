"""The result of a ufunc with ``where``: other elements of ``out`` stay as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.array.core import Array

from dask_dgpu.batches.blocks import Region
from dask_dgpu.batches.operands import Operand, Template, operand
from dask_dgpu.batches.rules import Slot


def selected(template: Template, out: Any) -> Any:
    """Return ``out``, or one that writes only the elements that a ufunc's ``where`` selects."""
    where = template.options.get("where", True)
    if where is True:
        return out
    if isinstance(where, Slot):
        return Selected(out, template.operands[where.at])
    return Selected(out, operand("where", np.asarray(where, bool)))


@dataclass(frozen=True)
class Selected:
    """Writes parts of an array where a mask is true.

    The mask is broadcast to the shape of the array.
    """

    out: Any
    mask: Operand

    def __setitem__(self, region: Region, block: Any) -> None:
        part = np.array(self.out[region])
        np.copyto(part, block, where=self._mask(region), casting="unsafe")
        self.out[region] = part

    def _mask(self, region: Region) -> Any:
        shape = self.mask.shape
        along = zip(region[len(region) - len(shape) :], shape, strict=True)
        part = self.mask.read([(0, 1) if n == 1 else (at.start, at.stop) for at, n in along])
        return part.compute() if isinstance(part, Array) else part
