"""Contraction of two arrays: a stack of products of matrices.

::

    einsum "bqd,bkd->bqk"                 batch   rows   inner   columns
      left  [b, q, d]  ->  stack [b, q, d]   b       q      d
      right [b, k, d]  ->  stack [b, d, k]   b              d        k
      result           ->  stack [b, q, k]   b       q               k

Every axis of the arrays belongs to one of four groups, and a group is one axis of a stack. The
blocks of a stack are numbered in row-major order of the blocks along the axes of each group.
"""
