"""Redistribution of an array of any number of axes from one layout to another.

::

      source                  target                    rank 0 in round r
     ___________             ___________
    |   0   | 0 |           | 0 | 1 | 2 |      units:   slices of its blocks
    |_______|___|           |   |   |   |      pieces:  parts of a unit, one for
    |   1   | 2 |   ---->   |   |   |   |               each target block
    |_______|___|           |   |   |   |      message: pieces for one rank
    |   2   | 1 |           |   |   |   |
    |_______|___|           |___|___|___|

A target block consists of its overlaps with source blocks. A block that is the same on the same
rank in both layouts is passed on. Every rank computes the whole plan, so that ranks exchange only
pieces.

References
----------
.. [1] L. Prylli and B. Tourancheau, "Fast runtime block cyclic data redistribution
   on multiprocessors", Journal of Parallel and Distributed Computing 45 (1997).
.. [2] L. Dalcin, M. Mortensen and D. E. Keyes, "Fast parallel multidimensional FFT
   using advanced MPI", Journal of Parallel and Distributed Computing 128 (2019).
"""
