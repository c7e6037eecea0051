"""The operations that gangs compute.

All other modules read the table :data:`OPERATIONS`.
"""

from dask_dgpu.operations import (
    contract,
    conv2d,
    fft,
    matmul,
    overlap,
    rechunk,
    shard_map,
    stencil,
)
from dask_dgpu.operations.operation import Cost, Operation

OPERATIONS: dict[str, Operation] = {
    "matmul": matmul.MATMUL,
    "contract": contract.CONTRACT,
    "rechunk": rechunk.RECHUNK,
    "fft": fft.FFT,
    "overlap": overlap.OVERLAP,
    "stencil": stencil.STENCIL,
    "jacobi": stencil.JACOBI,
    "conv2d": conv2d.CONV2D,
    "shard_map": shard_map.SHARD_MAP,
}

__all__ = ["OPERATIONS", "Cost", "Operation"]
