"""Contraction of two arrays: a stack of products of matrices.

::

    einsum "bqd,bkd->bqk"                 batch   rows   inner   columns
      left  [b, q, d]  ->  stack [b, q, d]   b       q      d
      right [b, k, d]  ->  stack [b, d, k]   b              d        k
      result           ->  stack [b, q, k]   b       q               k

Every axis of the arrays belongs to one of four groups, and a group is one axis of a stack. Blocks
are transposed and reshaped, which are views for the usual orders of axes. The blocks of a stack
are numbered in row-major order of the blocks along the axes of each group.

Two strategies compute the result:

- *Owner computes*: each rank computes whole blocks, and receives the blocks that it lacks. With
  at least as many blocks of the batch as ranks, only misplaced blocks travel.
- *In turn*: a SUMMA product over all ranks for each element of the batch. Without a batch, this is
  one product of two matrices.

The one with the lower predicted cost wins.
"""
