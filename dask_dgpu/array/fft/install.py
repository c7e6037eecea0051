"""``dask.array.fft`` while dask_dgpu is enabled: the functions of ``dask_dgpu.fft``."""

from __future__ import annotations

from dask_dgpu.array import fft
from dask_dgpu.array.fft.call import DASK_FFT, DASKS_OWN


def install() -> None:
    """Put our functions in the place of Dask's; ``numpy.fft`` finds them there."""
    for name in DASKS_OWN:
        setattr(DASK_FFT, name, getattr(fft, name))


def uninstall() -> None:
    """Put Dask's functions back, unless somebody has put other ones there since."""
    for name, original in DASKS_OWN.items():
        if getattr(DASK_FFT, name) is getattr(fft, name):
            setattr(DASK_FFT, name, original)
