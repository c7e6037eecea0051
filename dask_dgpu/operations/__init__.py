"""The distributed algorithms that a program can name: one entry each."""

from dask_dgpu.operations import fft as pencil_fft
from dask_dgpu.operations import jacobi, stencil
from dask_dgpu.operations import matmul as summa
from dask_dgpu.operations import overlap as halo
from dask_dgpu.operations import rechunk as redistribute
from dask_dgpu.operations import sum as kahan_sum
from dask_dgpu.operations.operation import Algorithm, Cost

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
