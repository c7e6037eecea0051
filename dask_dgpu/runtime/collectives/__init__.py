"""The distributed algorithms that a program can name: one entry each."""

from dask_dgpu.runtime.collectives import halo, pencil_fft, redistribute, summa
from dask_dgpu.runtime.collectives.algorithm import Algorithm, Cost

ALGORITHMS: dict[str, Algorithm] = {
    "halo": halo.HALO,
    "pencil_fft": pencil_fft.PENCIL_FFT,
    "redistribute": redistribute.REDISTRIBUTE,
    "summa": summa.SUMMA,
}

__all__ = ["ALGORITHMS", "Algorithm", "Cost"]
