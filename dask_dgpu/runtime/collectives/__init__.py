"""The distributed algorithms that a program can name: one entry each."""

from dask_dgpu.runtime.collectives import (
    halo,
    jacobi,
    kahan_sum,
    pencil_fft,
    redistribute,
    stencil,
    summa,
)
from dask_dgpu.runtime.collectives.algorithm import Algorithm, Cost

ALGORITHMS: dict[str, Algorithm] = {
    "halo": halo.HALO,
    "jacobi": jacobi.JACOBI,
    "kahan_sum": kahan_sum.KAHAN_SUM,
    "pencil_fft": pencil_fft.PENCIL_FFT,
    "redistribute": redistribute.REDISTRIBUTE,
    "stencil": stencil.STENCIL,
    "summa": summa.SUMMA,
}

__all__ = ["ALGORITHMS", "Algorithm", "Cost"]
