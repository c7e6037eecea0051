"""Jacobi's iteration for ``laplacian(u) = rhs`` on a uniform grid of d axes.

::

    u'[i] = ( sum of the 2 d neighbours of u[i]  -  dx**2 rhs[i] ) / (2 d)

    sweeps      |--------|--------|--------|--------|---- ...
    residual of     ^ summed by the sweep after it
    all-reduce       |.........|
    read                       ^ and if it is small: recomputed for the final u

It is a stencil with an added array; see ``dask_dgpu/algorithms/stencil/`` for tiles, exchanges
and sweeps. ``u' - u`` is the residual ``laplacian(u) - rhs`` times ``dx**2 / (2 d)``, so every
few exchanges one sweep also sums its squares. Their all-reduce overlaps with the next sweeps,
and its result is read when the next residual is due. An iteration stops when the residual is
small, but counts as converged only if the recomputed residual of the returned u is small too.

The iteration converges for constant boundaries. If all are periodic or mirrored, a solution
exists only if the sum of ``rhs`` is 0. On a periodic grid of even lengths the alternating part
of u never decays ([1]_).

References
----------
.. [1] Y. Saad, "Iterative Methods for Sparse Linear Systems", 2nd edition, SIAM (2003).
"""
