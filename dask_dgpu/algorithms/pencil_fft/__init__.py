"""Fourier, cosine and sine transforms along axes that are cut into chunks: slabs and pencils.

::

    slab, one exchange                       pencil, two exchanges

       +-----------+      +--+--+--+            +--+--+      +-----+      +-----+
      /    0      /|     /  /  /  /|           /  /  /|     /     /|     /  /  /|
     +-----------+ |    +--+--+--+ |          +--+--+ +    +-----+ +    +--+--+ |
     |___________| | -> |  |  |  | |          |__|__|/| -> |_____|/| -> |  |  | |
     |___________|/     |  |  |  | +          |  |  | +    |     | +    |  |  | +
     |___________|      |  |  |  |/           |__|__|/     |_____|/     |__|__|/
     +-----------+      +--+--+--+

An axis is transformed where it is a single chunk. Axes that are so already come first; then an
exchange makes other axes whole and cuts some that need not be whole in their place. A slab
plan gathers all that are left in one exchange, which the axes that remain must be long enough
to be cut for. A pencil plan gathers one axis after the other, each exchange within rows or
columns of the mesh only. Which it is, in which order axes come and which axes are cut instead
is what moves the fewest bytes among the ways that leave work for every rank.

What a crop leaves out never moves: it is dropped before the first exchange. What a pad adds
moves only if no later order is possible. A transform from real numbers is the first of its
call and one to real numbers the last; the others commute, and cosine and sine transforms with
all.

References
----------
.. [1] L. Dalcin, M. Mortensen and D. E. Keyes, "Fast parallel multidimensional FFT using
   advanced MPI", Journal of Parallel and Distributed Computing 128 (2019), which mpi4py-fft
   implements.
.. [2] J. Romero, P. Costa and M. Fatica, "Distributed-memory simulations of turbulent flows
   on modern GPU systems using an adaptive pencil decomposition library", PASC 2022: cuDecomp.
"""

from dask_dgpu.algorithms.pencil_fft.choose import plan_pencil_fft
from dask_dgpu.algorithms.pencil_fft.plan import (
    TRIGONOMETRIC,
    Chunks,
    Exchange,
    PencilPlan,
    Stage,
    Transform,
    even_chunks,
    result_dtype,
)
from dask_dgpu.algorithms.pencil_fft.rank import pencil_fft_rank
from dask_dgpu.algorithms.pencil_fft.ranks import RankedPencil, cost, peak, plan_on_ranks, received

__all__ = [
    "TRIGONOMETRIC",
    "Chunks",
    "Exchange",
    "PencilPlan",
    "RankedPencil",
    "Stage",
    "Transform",
    "cost",
    "even_chunks",
    "peak",
    "pencil_fft_rank",
    "plan_on_ranks",
    "plan_pencil_fft",
    "received",
    "result_dtype",
]
