"""Matrix multiplication of block-distributed operands: SUMMA on a mesh of ranks.

::

              columns of the mesh                 one step: the panel k of A and of B
             c = 0     c = 1     c = 2            ________     ____________
    r = 0  [ C 0,0 ] [ C 0,1 ] [ C 0,2 ]         |  | |   |   |____________|
    r = 1  [ C 1,0 ] [ C 1,1 ] [ C 1,2 ]         |  |k|   | x |_____k______|
                                                 |__|_|___|   |____________|

Each rank keeps one rectangle of C and multiplies, panel by panel, the rows of A and the
columns of B that it needs. The pieces of a panel travel from their owners straight into the
panel, without a separate redistribution. While a rank multiplies panel s, it receives panel
s + 1. Ranks start at different panels, so that they do not all ask the same owners.

A third axis of the mesh splits the contraction: its ranks hold partial sums of the same
rectangle, which are added in a fixed order at the end. Known strategies are special cases:

=============  ============  ==============================================
mesh           name          stays in place
=============  ============  ==============================================
(R, C, 1)      SUMMA         C
(P, 1, 1)      ring, "row"   rows of A and C; B travels
(1, P, 1)      "column"      columns of B and C; A travels
(1, 1, P)      inner         A and B; C is summed (tall and skinny operands)
=============  ============  ==============================================

The plan with the lowest cost of communication for the layout of the blocks wins.

References
----------
.. [1] R. A. van de Geijn and J. Watts, "SUMMA: scalable universal matrix
   multiplication algorithm", Concurrency: Practice and Experience 9 (1997).
.. [2] E. Solomonik and J. Demmel, "Communication-optimal parallel 2.5D matrix
   multiplication and LU factorization algorithms", Euro-Par 2011.
"""
