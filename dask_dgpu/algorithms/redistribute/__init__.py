"""Moving an array of any number of axes from one layout to another, within a gang.

::

      source                  target                    rank 0 in round r
     ___________             ___________
    |   0   | 0 |           | 0 | 1 | 2 |      units:   slices of its blocks
    |_______|___|           |   |   |   |      pieces:  what of a unit goes into
    |   1   | 2 |   ---->   |   |   |   |               one target block
    |_______|___|           |   |   |   |      message: pieces for one rank,
    |   2   | 1 |           |   |   |   |               one after the other
    |_______|___|           |___|___|___|

A target block is put together from the parts that source blocks share with it.
Whatever a rank sends to another in a round is one message. Messages and the
buffers for them are bounded: a large array goes in several rounds, to which the
units of all ranks are dealt so that each round takes an even share of what every
rank sends and receives. While a round travels, the next is packed.

A block that is the same on the same rank in both layouts is passed on as it is.
What else stays on its rank is copied from block to block. Every rank computes
the whole plan, so that nothing but the pieces themselves is sent.

A unit may be computed in the moment it is packed: that is how an FFT hides its
transforms behind the transfer and needs no array in between.

References
----------
.. [1] L. Prylli and B. Tourancheau, "Fast runtime block cyclic data redistribution
   on multiprocessors", Journal of Parallel and Distributed Computing 45 (1997).
.. [2] L. Dalcin, M. Mortensen and D. E. Keyes, "Fast parallel multidimensional FFT
   using advanced MPI", Journal of Parallel and Distributed Computing 128 (2019).
"""

from dask_dgpu.algorithms.redistribute.cost import LEAST, buffer_bytes, cost, traffic, workspace
from dask_dgpu.algorithms.redistribute.plan import RedistributePlan, plan_redistribute
from dask_dgpu.algorithms.redistribute.rank import redistribute_rank

__all__ = [
    "LEAST",
    "RedistributePlan",
    "buffer_bytes",
    "cost",
    "plan_redistribute",
    "redistribute_rank",
    "traffic",
    "workspace",
]
