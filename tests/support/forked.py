"""Workers of Dask that fork from a server that has imported what they need.

A worker that is spawned imports for 3 s of CPU time, and 4 s when it is killed and restarted.
"""

from __future__ import annotations

import dask
from distributed.utils import get_mp_context

IMPORTED = [
    "dask_dgpu.runtime.worker.plugin",
    "dask_dgpu.kernels.conv.host",
    "numba",
]
"""What every worker imports sooner or later."""
METHOD = "distributed.worker.multiprocessing-method"


def preload() -> None:
    """Have the server of this process import it all, if it has not started yet."""
    get_mp_context().set_forkserver_preload(["distributed", *IMPORTED])


def fork_workers() -> None:
    """Fork the workers of all clusters that this process starts from now on."""
    dask.config.set({METHOD: "forkserver"})
    preload()
