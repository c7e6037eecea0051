"""Runs a script that forks its workers and ranks, and whose clusters do not measure their rates.

Measuring takes two seconds of every cluster, and plans would depend on the machine.
"""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path
from types import ModuleType

import dask

from tests.support.forked import fork_workers


def main() -> None:
    """Run the script that the command line names, with the arguments that follow."""
    fork_workers()
    multiprocessing.set_start_method("forkserver")
    dask.config.set({"dgpu.cost.measure": False})
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
