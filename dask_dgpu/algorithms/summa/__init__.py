"""Matrix product of block-distributed operands: SUMMA on a mesh of ranks.

::

              columns of the mesh                 one step: the panel k of A and of B
             c = 0     c = 1     c = 2            ________     ____________
    r = 0  [ C 0,0 ] [ C 0,1 ] [ C 0,2 ]         |  | |   |   |____________|
    r = 1  [ C 1,0 ] [ C 1,1 ] [ C 1,2 ]         |  |k|   | x |_____k______|
                                                 |__|_|___|   |____________|

Each rank keeps one rectangle of C in place and multiplies, panel by panel, the
rows of A and the columns of B that it needs. A panel's pieces travel from the
ranks that own them, wherever these are, straight into the panel: no separate
redistribution. While panel s is multiplied, panel s + 1 is on its way. Ranks
start at different panels, so that in no step all of them ask the same owners.

A third axis of the mesh splits the contraction: its ranks hold partial sums of
the same rectangle, which are added in a fixed order at the end. The known
strategies are corners of this family:

=============  ============  ==============================================
mesh           name          stays in place
=============  ============  ==============================================
(R, C, 1)      SUMMA         C
(P, 1, 1)      ring, "row"   rows of A and C; B comes round
(1, P, 1)      "column"      columns of B and C; A comes round
(1, 1, P)      inner         A and B; C is summed (tall and skinny operands)
=============  ============  ==============================================

The cost of the bytes that must move, given where the blocks are, decides.

References
----------
.. [1] R. A. van de Geijn and J. Watts, "SUMMA: scalable universal matrix
   multiplication algorithm", Concurrency: Practice and Experience 9 (1997).
.. [2] E. Solomonik and J. Demmel, "Communication-optimal parallel 2.5D matrix
   multiplication and LU factorization algorithms", Euro-Par 2011.
"""

from dask_dgpu.algorithms.summa.choose import plan_summa
from dask_dgpu.algorithms.summa.plan import Operand, SummaPlan
from dask_dgpu.algorithms.summa.rank import summa_rank

__all__ = ["Operand", "SummaPlan", "plan_summa", "summa_rank"]
