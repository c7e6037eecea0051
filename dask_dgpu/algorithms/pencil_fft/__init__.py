"""Fourier, cosine and sine transforms along axes in several chunks: slabs and pencils.

::

    slab, one exchange                       pencil, two exchanges

       +-----------+      +--+--+--+            +--+--+      +-----+      +-----+
      /    0      /|     /  /  /  /|           /  /  /|     /     /|     /  /  /|
     +-----------+ |    +--+--+--+ |          +--+--+ +    +-----+ +    +--+--+ |
     |___________| | -> |  |  |  | |          |__|__|/| -> |_____|/| -> |  |  | |
     |___________|/     |  |  |  | +          |  |  | +    |     | +    |  |  | +
     |___________|      |  |  |  |/           |__|__|/     |_____|/     |__|__|/
     +-----------+      +--+--+--+

A transform needs its axis in a single chunk. Such axes come first; then an exchange merges the
chunks of other axes and splits axes that need not be whole. A slab plan merges all remaining
axes in one exchange, which needs long enough other axes to split. A pencil plan merges one axis
after the other; each exchange is within the rows or columns of the mesh. Among the plans with
work for every rank, the one that moves the fewest bytes wins; it decides the order of the axes
and the axes to split.

Cropping happens before the first exchange, so that cropped elements never move. Padded elements
move only if no later order is possible. A transform from real numbers is the first of its call
and one to real numbers the last; the others commute, and cosine and sine transforms with all.

References
----------
.. [1] L. Dalcin, M. Mortensen and D. E. Keyes, "Fast parallel multidimensional FFT using
   advanced MPI", Journal of Parallel and Distributed Computing 128 (2019), which mpi4py-fft
   implements.
.. [2] J. Romero, P. Costa and M. Fatica, "Distributed-memory simulations of turbulent flows
   on modern GPU systems using an adaptive pencil decomposition library", PASC 2022: cuDecomp.
"""
