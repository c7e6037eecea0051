"""Ghost cells: every block of an array is extended by what lies around it.

::

      blocks of ranks 0 and 1            extended blocks, depth 1
     _________ _________               ___________   ___________
    |         |         |             |b b b b b b| |b b b b b b|    b  beyond the array,
    |    0    |    1    |             |b 0 0 0 0 1| |0 1 1 1 1 b|       as the boundary says
    |         |         |    ---->    |b 0 0 0 0 1| |0 1 1 1 1 b|
    |_________|_________|             |b b b b b b| |b b b b b b|

Interface::

    plan = plan_halo(layout, dtype, depth, boundary, size, corners=True, wanted=None)
    extended = halo_rank(plan, comm, device, blocks)     # dict of index -> new array

``depth`` has a pair (before, after) for each axis, ``boundary`` one of ``None`` or
``"none"``, ``"periodic"``, ``"reflect"`` (the edge is repeated, as in Dask and
``scipy.ndimage``), ``"mirror"`` (it is not), ``"nearest"`` and a number. Where it is
none, extended blocks end where the array ends. ``plan.target`` is the layout of the
extended blocks, each on the rank of its block. ``wanted`` are the blocks to extend,
by default all that have an owner.

Blocks that stay in the middle of storage of their own are not copied: an
:class:`Exchange` is made once and fills their ghost cells again and again, while
something else is computed between its ``start`` and its ``finish``.

Along each axis an extended chunk consists of *segments*: parts of source chunks, taken
forwards, backwards or one position again and again, or a constant. A *cell* is a
segment of each axis. All cells of a rank for another are one message; a block may be
thinner than the depth, then its ghost cells come from several.

References
----------
.. [1] F. B. Kjolstad and M. Snir, "Ghost cell pattern", Proceedings of the 2010
   Workshop on Parallel Programming Patterns (2010).
"""

from dask_dgpu.algorithms.halo.axis import Boundary, Depth
from dask_dgpu.algorithms.halo.cost import cost, traffic, workspace
from dask_dgpu.algorithms.halo.plan import HaloPlan, plan_halo
from dask_dgpu.algorithms.halo.rank import Exchange, halo_rank

__all__ = [
    "Boundary",
    "Depth",
    "Exchange",
    "HaloPlan",
    "cost",
    "halo_rank",
    "plan_halo",
    "traffic",
    "workspace",
]
