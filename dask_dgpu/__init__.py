"""Distributed GPU arrays that are used without leaving Dask.

Examples
--------
>>> import dask.array as da, dask_dgpu as dgpu
>>> client = dgpu.start()  # doctest: +SKIP
>>> x = da.random.random((40_000, 40_000), chunks="auto")  # doctest: +SKIP
>>> da.matmul(x, x.T).sum().compute()  # doctest: +SKIP
"""

from dask_dgpu import errors
from dask_dgpu.array import fft
from dask_dgpu.array.jacobi import JacobiInfo, jacobi
from dask_dgpu.array.poisson import poisson
from dask_dgpu.array.reductions import dot, max, mean, min, norm, std, sum, var
from dask_dgpu.array.stencil import LAPLACIAN_5PT, LAPLACIAN_9PT, stencil
from dask_dgpu.observe.explain import Explanation, explain
from dask_dgpu.observe.health import Health, check_health
from dask_dgpu.observe.progress import progress
from dask_dgpu.session.enable import Enabled, disable, enable
from dask_dgpu.session.startup import start

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
