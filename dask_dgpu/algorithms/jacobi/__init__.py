"""Jacobi's iteration for ``laplacian(u) = rhs`` on a uniform grid of d axes.

::

    u'[i] = ( sum of the 2 d neighbours of u[i]  -  dx**2 rhs[i] ) / (2 d)

    sweeps      |--------|--------|--------|--------|---- ...
    residual of     ^ summed up by the sweep after it
    all-reduce       |.........|
    looked at                  ^ and if it is small: recomputed for the final u

It is a stencil with something added: see ``dask_dgpu/algorithms/stencil/`` for tiles,
exchanges and sweeps. ``u' - u`` is the residual ``laplacian(u) - rhs`` times
``dx**2 / (2 d)``, so every few exchanges one sweep sums up its squares as it goes. Their
all-reduce travels while the next sweeps are computed, and what it brings is looked at when
the next one is due. An iteration is over when the residual was small, but counts as
converged only if that of the u that is returned, computed anew, is small too.

The iteration converges for boundaries of constants. Where all are periodic or mirrored, a
solution exists only if the sum of ``rhs`` is 0, and of a periodic grid of even lengths
the part of u that alternates never decays ([1]_).

References
----------
.. [1] Y. Saad, "Iterative Methods for Sparse Linear Systems", 2nd edition, SIAM (2003).
"""

from dask_dgpu.algorithms.jacobi import report
from dask_dgpu.algorithms.jacobi.plan import JacobiPlan, JacobiTask, cost, peak, plan_jacobi
from dask_dgpu.algorithms.jacobi.rank import (
    CONVERGED,
    Outcome,
    Scale,
    jacobi_rank,
    verdict,
)

__all__ = [
    "CONVERGED",
    "JacobiPlan",
    "JacobiTask",
    "Outcome",
    "Scale",
    "cost",
    "jacobi_rank",
    "peak",
    "plan_jacobi",
    "report",
    "verdict",
]
