"""The operations that gangs compute, one file each.

All other modules read the table :data:`OPERATIONS`. Rules are tried in its order.
"""

from dask_dgpu.operations import fft, jacobi, matmul, overlap, rechunk, stencil
from dask_dgpu.operations import sum as sum_
from dask_dgpu.operations.operation import Cost, Operation
from graph_opt.passes.rewrite import Rule
from graph_opt.rules import deferred

OPERATIONS: dict[str, Operation] = {
    "matmul": matmul.MATMUL,
    "rechunk": rechunk.RECHUNK,
    "fft": fft.FFT,
    "overlap": overlap.OVERLAP,
    "stencil": stencil.STENCIL,
    "jacobi": jacobi.JACOBI,
    "sum": sum_.SUM,
}


def rules() -> tuple[Rule, ...]:
    """Return the rules of all operations; the first is that of operations of our own."""
    found = (operation.match for operation in OPERATIONS.values())
    return (deferred.match, *(rule for rule in found if rule is not None))


__all__ = ["OPERATIONS", "Cost", "Operation", "rules"]
