"""Repeated application of a stencil to an array in blocks.

::

     exchange, s deep         sweep 1            sweep s            exchange ...
     _________________    _______________     _____________
    |g g g g g g g g g|  |  g g g g g g  |   |             |        g: cells that several
    |g g|         |g g|  |  g|       |g  |   |   |     |   |           ranks compute
    |g g|  tile   |g g|  |  g|       |g  |   |   |     |   |
    |g g|_________|g g|  |  g|_______|g  |   |   |_____|   |
    |g g g g g g g g g|  |  g g g g g g  |   |             |

Each rank has tiles with ghost cells in two buffers, and computes one buffer from the other.
Ghost cells s times as deep as the stencil's radius last for s sweeps ([1]_): a rank sends
fewer messages by a factor of s, and on a host each band of rows is swept s times while it is in
the cache. Beyond an array that is not periodic is a rim as wide as the radius, filled from the
tile itself before each sweep.

Many or uneven blocks are redistributed to one even tile for each rank, and back.

References
----------
.. [1] C. Ding and Y. He, "A ghost cell expansion method for reducing communications in
   solving PDE problems", Supercomputing (2001).
"""
