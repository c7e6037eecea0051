"""Compensated and reproducible sums of an array whose blocks are on several ranks.

::

      source            sums of blocks        to the owners          result
     ___________         ___________
    |  0  |  1  |       | s c | s c |  ->  0: s c + s c + s c  ->   _____ _____
    |_____|_____|       |_____|_____|                              |  0  |  1  |
    |  1  |  2  |  ->   | s c | s c |  ->  1: s c + s c + s c  ->  |_____|_____|
    |_____|_____|       |_____|_____|

Each rank reads its blocks once (:mod:`dask_dgpu.kernels.sums`) and adds the partial sums for each
block of the result in the order of its blocks. It sends them to the owner of the block, which adds
those of all ranks by a tree in their order, and rounds. On several hosts with slower links between
them, one rank of each host adds the partial sums of its host first.

A message has two doubles for a compensated sum, or four if the result is a double, since sums of
doubles may overflow. An exact sum is integers, so its bits depend neither on the ranks nor on the
layout. Its message has the limbs that any rank uses; one small all-reduce finds them.

References
----------
.. [1] T. Ogita, S. M. Rump and S. Oishi, "Accurate sum and dot product", SIAM Journal on
   Scientific Computing 26 (2005).
.. [2] J. Demmel and H. D. Nguyen, "Parallel reproducible summation", IEEE Transactions on
   Computers 64 (2015).
"""
