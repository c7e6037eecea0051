"""The reductions of NCCL, and of dtypes that it lacks as those of others."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch.distributed

from dask_dgpu.comm.common import as_bytes
from dask_dgpu.comm.protocol import Buffer, Reduction

dist: Any = torch.distributed
NATIVE = {np.dtype(t) for t in ("u1", "i1", "i4", "i8", "f2", "f4", "f8")}
"""The dtypes that NCCL reduces."""


def native_form(op: Reduction, *buffers: Buffer) -> tuple[Any, list[Buffer]] | None:
    """Return NCCL's reduction and views of the buffers, ``None`` if NCCL has none.

    Dtypes that NCCL lacks are viewed as others that it has.
    """
    dtype = buffers[0].dtype
    if dtype.kind == "b":
        logical = {"sum": dist.ReduceOp.MAX, "max": dist.ReduceOp.MAX}
        return logical.get(op, dist.ReduceOp.MIN), [as_bytes(b) for b in buffers]
    if dtype.kind == "c":
        half = np.dtype(f"f{dtype.itemsize // 2}")
        return dist.ReduceOp.SUM, [b.view(half) for b in buffers]
    if dtype.kind == "u" and dtype.itemsize >= 4 and op == "sum":
        signed = np.dtype(f"i{dtype.itemsize}")
        return dist.ReduceOp.SUM, [b.view(signed) for b in buffers]
    if dtype not in NATIVE:
        return None
    name = {"sum": "SUM", "min": "MIN", "max": "MAX"}[op]
    return getattr(dist.ReduceOp, name), list(buffers)
