"""Compensated and reproducible sums of an array whose blocks are on several ranks.

::

      source            sums of blocks        to the owners          result
     ___________         ___________
    |  0  |  1  |       | s c | s c |  ->  0: s c + s c + s c  ->   _____ _____
    |_____|_____|       |_____|_____|                              |  0  |  1  |
    |  1  |  2  |  ->   | s c | s c |  ->  1: s c + s c + s c  ->  |_____|_____|
    |_____|_____|       |_____|_____|

Each rank sums its blocks, every number once (:mod:`dask_dgpu.kernels.sums.compensated`,
:mod:`dask_dgpu.kernels.sums.binned`), and adds what it has for the same block of the result, in
the order of the blocks. What it has for another rank's blocks goes there as one message. The
owner adds what came by a tree in the order of ranks, and rounds.

A compensated sum travels as two doubles, one of doubles as four: what may have overflowed is
beside the rest. An exact one travels as limbs, those in which any
rank has anything, which takes one small reduction before; that its parts are integers makes
its bits independent of ranks and layout.

References
----------
.. [1] T. Ogita, S. M. Rump and S. Oishi, "Accurate sum and dot product", SIAM Journal on
   Scientific Computing 26 (2005).
.. [2] J. Demmel and H. D. Nguyen, "Parallel reproducible summation", IEEE Transactions on
   Computers 64 (2015).
"""

from dask_dgpu.algorithms.kahan_sum.plan import Summing, SumPlan, cost, peak, plan_sum, received
from dask_dgpu.algorithms.kahan_sum.rank import kahan_sum_rank

__all__ = [
    "SumPlan",
    "Summing",
    "cost",
    "kahan_sum_rank",
    "peak",
    "plan_sum",
    "received",
]
