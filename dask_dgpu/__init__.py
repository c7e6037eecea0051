"""Distributed GPU arrays that are used without leaving Dask.

Examples
--------
>>> import dask.array as da, dask_dgpu as dgpu
>>> client = dgpu.start()  # doctest: +SKIP
>>> x = da.random.random((40_000, 40_000), chunks="auto")  # doctest: +SKIP
>>> da.matmul(x, x.T).sum().compute()  # doctest: +SKIP
"""

from dask_dgpu import errors, fft
from dask_dgpu.api import Enabled, disable, enable, start
from dask_dgpu.explain import Explanation, explain
from dask_dgpu.health import Health, check_health
from dask_dgpu.jacobi import JacobiInfo, jacobi
from dask_dgpu.poisson import poisson
from dask_dgpu.progress import progress
from dask_dgpu.reductions import dot, max, mean, min, norm, std, sum, var
from dask_dgpu.stencil import LAPLACIAN_5PT, LAPLACIAN_9PT, stencil

__version__ = "0.1.0"

__all__ = [
    "LAPLACIAN_5PT",
    "LAPLACIAN_9PT",
    "Enabled",
    "Explanation",
    "Health",
    "JacobiInfo",
    "check_health",
    "disable",
    "dot",
    "enable",
    "errors",
    "explain",
    "fft",
    "jacobi",
    "max",
    "mean",
    "min",
    "norm",
    "poisson",
    "progress",
    "start",
    "std",
    "stencil",
    "sum",
    "var",
]
