"""Runs a script whose cluster forks its workers from a process that has imported everything.

A worker that is spawned imports for 3 s of CPU time.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import dask
from distributed.utils import get_mp_context

from tests.cluster.conftest import IMPORTED, METHOD


def main() -> None:
    """Run the script that the command line names, with the arguments that follow."""
    dask.config.set({METHOD: "forkserver"})
    get_mp_context().set_forkserver_preload(["distributed", *IMPORTED])
    del sys.argv[0]
    script = Path(sys.argv[0])
    sys.path.insert(0, str(script.parent))
    module = ModuleType("__main__")
    module.__file__ = str(script)
    # the second name is that of the script in processes that it spawns
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    exec(compile(script.read_text(), script, "exec"), module.__dict__)


if __name__ == "__main__":
    main()
