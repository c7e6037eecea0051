"""The operations that gangs compute, one file each.

All other modules read the table :data:`OPERATIONS`.
"""

from dask_dgpu.operations import contract, conv2d, fft, jacobi, matmul, overlap, rechunk, stencil
from dask_dgpu.operations import sum as sum_
from dask_dgpu.operations.operation import Cost, Operation
from graph_opt.dask_graph.layers import DEFERRED
from graph_opt.dask_graph.parse import Rule

OPERATIONS: dict[str, Operation] = {
    "matmul": matmul.MATMUL,
    "contract": contract.CONTRACT,
    "rechunk": rechunk.RECHUNK,
    "fft": fft.FFT,
    "overlap": overlap.OVERLAP,
    "stencil": stencil.STENCIL,
    "jacobi": jacobi.JACOBI,
    "sum": sum_.SUM,
    "conv2d": conv2d.CONV2D,
}

RULES: tuple[Rule, ...] = (
    DEFERRED,
    *(operation.rule for operation in OPERATIONS.values() if operation.rule is not None),
)
"""The rules of all operations, in the order of trial."""

__all__ = ["OPERATIONS", "RULES", "Cost", "Operation"]
