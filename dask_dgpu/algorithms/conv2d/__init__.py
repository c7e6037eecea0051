"""Convolution of images in blocks.

::

      images (rank)            windows on ranks               tiles           result
     ___________             _____________
    |  0  |  0  |           |  0   :      |                 ___________     ___________
    |_____|_____|   halo    |......:......|                |  0  |  0  |   |  0  |  0  |
    |  1  |  1  |   ---->   |  1   :  ... |  convolution   |_____|_____|   |_____|_____|
    |_____|_____|           |______:______|     ---->      |  1  |  1  |   |  1  |  1  |
                            one for each tile              |_____|_____|   |_____|_____|

A *tile* is a block of the result or a part of one. One rank computes it, from the *window* under
it and all weights. The window has the halo of the kernel, and zeros beyond the edges of the image.

Tiles are dealt out evenly, most of each window to the rank that owns it. Weights travel once to
each rank without them. Windows that need nothing from other ranks are convolved while messages are
in transit.

References
----------
.. [1] N. Dryden, N. Maruyama, T. Benson, T. Moon, M. Snir and B. Van Essen, "Improving
   strong-scaling of CNN training by exploiting finer-grained parallelism", IEEE International
   Parallel and Distributed Processing Symposium (2019).
"""
