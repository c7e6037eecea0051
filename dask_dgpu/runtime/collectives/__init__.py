"""The distributed algorithms that a program can name: one entry each."""

from dask_dgpu.runtime.collectives import (
    halo,
    jacobi,
    pencil_fft,
    redistribute,
    stencil,
    summa,
)
from dask_dgpu.runtime.collectives.algorithm import Algorithm, Cost

ALGORITHMS: dict[str, Algorithm] = {
    "halo": halo.HALO,
    "jacobi": jacobi.JACOBI,
    "pencil_fft": pencil_fft.PENCIL_FFT,
    "redistribute": redistribute.REDISTRIBUTE,
    "stencil": stencil.STENCIL,
    "summa": summa.SUMMA,
}

__all__ = ["ALGORITHMS", "Algorithm", "Cost"]
