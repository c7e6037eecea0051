"""The distributed algorithms that a program can name: one entry each."""

from dask_dgpu.runtime.collectives import redistribute, summa
from dask_dgpu.runtime.collectives.algorithm import Algorithm, Cost

ALGORITHMS: dict[str, Algorithm] = {
    "redistribute": redistribute.REDISTRIBUTE,
    "summa": summa.SUMMA,
}

__all__ = ["ALGORITHMS", "Algorithm", "Cost"]
