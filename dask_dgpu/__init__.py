"""Distributed GPU arrays for Dask.

Examples
--------
>>> import dask.array as da, dask_dgpu as dgpu
>>> client = dgpu.start()  # doctest: +SKIP
>>> x = da.random.random((40_000, 40_000), chunks="auto")  # doctest: +SKIP
>>> da.matmul(x, x.T).sum().compute()  # doctest: +SKIP
"""

from dask_dgpu import cost, errors
from dask_dgpu.algorithms.shard_map.comm import ShardComm
from dask_dgpu.array import fft
from dask_dgpu.array.conv2d import conv2d
from dask_dgpu.array.einsum import EinsumPath, EinsumStep, einsum, einsum_path
from dask_dgpu.array.functions import gelu, layer_norm, softmax
from dask_dgpu.array.fuse import Fused, fuse
from dask_dgpu.array.jacobi import JacobiInfo, jacobi
from dask_dgpu.array.matmul import matmul
from dask_dgpu.array.poisson import poisson
from dask_dgpu.array.reductions import dot, mean, norm, std, var
from dask_dgpu.array.reductions import max as max
from dask_dgpu.array.reductions import min as min
from dask_dgpu.array.reductions import sum as sum
from dask_dgpu.array.shard_map import shard_map
from dask_dgpu.array.stencil import LAPLACIAN_5PT, LAPLACIAN_9PT, stencil
from dask_dgpu.array.weighted_sum import weighted_sum, weighted_sum_grad
from dask_dgpu.batches.plan import Plan
from dask_dgpu.batches.run import plan, run, run_many
from dask_dgpu.calls.jit import Step, jit
from dask_dgpu.calls.loop import fori_loop, while_loop
from dask_dgpu.calls.solvers.cg import cg
from dask_dgpu.calls.solvers.gmres import gmres
from dask_dgpu.calls.solvers.lsqr import lsqr
from dask_dgpu.observe.explain import Explanation, explain
from dask_dgpu.observe.gpu_status import GpuStatus, gpu_status
from dask_dgpu.observe.health import Health, check_health
from dask_dgpu.observe.profiler import Profiler, ProfileTable, Timeline
from dask_dgpu.observe.progress import progress
from dask_dgpu.observe.versions import show_versions
from dask_dgpu.session.enable import Enabled, disable, enable
from dask_dgpu.session.startup import start
from dask_dgpu.session.warmup import warmup

__version__ = "0.1.0"

# `max`, `min` and `sum` are public too, but a wildcard import must not shadow builtins
__all__ = [
    "LAPLACIAN_5PT",
    "LAPLACIAN_9PT",
    "EinsumPath",
    "EinsumStep",
    "Enabled",
    "Explanation",
    "Fused",
    "GpuStatus",
    "Health",
    "JacobiInfo",
    "Plan",
    "ProfileTable",
    "Profiler",
    "ShardComm",
    "Step",
    "Timeline",
    "cg",
    "check_health",
    "conv2d",
    "cost",
    "disable",
    "dot",
    "einsum",
    "einsum_path",
    "enable",
    "errors",
    "explain",
    "fft",
    "fori_loop",
    "fuse",
    "gelu",
    "gmres",
    "gpu_status",
    "jacobi",
    "jit",
    "layer_norm",
    "lsqr",
    "matmul",
    "mean",
    "norm",
    "plan",
    "poisson",
    "progress",
    "run",
    "run_many",
    "shard_map",
    "show_versions",
    "softmax",
    "start",
    "std",
    "stencil",
    "var",
    "warmup",
    "weighted_sum",
    "weighted_sum_grad",
    "while_loop",
]
