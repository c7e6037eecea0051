"""Ghost cells: extending every block of an array by the cells around it.

::

      blocks of ranks 0 and 1            extended blocks, depth 1
     _________ _________               ___________   ___________
    |         |         |             |b b b b b b| |b b b b b b|    b  beyond the array,
    |    0    |    1    |             |b 0 0 0 0 1| |0 1 1 1 1 b|       by the boundary
    |         |         |    ---->    |b 0 0 0 0 1| |0 1 1 1 1 b|
    |_________|_________|             |b b b b b b| |b b b b b b|

``depth`` has a pair (before, after) for each axis. ``boundary`` is for each axis ``None``,
``"periodic"``, ``"reflect"`` (with the edge, as in Dask and ``scipy.ndimage``),
``"mirror"`` (without the edge), ``"nearest"`` or a number. Without a boundary, extended blocks
end at the end of the array. ``plan.target`` is the layout of the extended blocks, each on the
rank of its block.

All cells from one rank for another are one message. A block may be thinner than the depth; then the
ghost cells come from several blocks.

References
----------
.. [1] F. B. Kjolstad and M. Snir, "Ghost cell pattern", Proceedings of the 2010
   Workshop on Parallel Programming Patterns (2010).
"""
