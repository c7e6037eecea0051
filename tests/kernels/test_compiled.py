"""Functions compiled at their first call, with a place on disk or without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dask_dgpu.kernels.compiled import compiled


def test_without_a_place_on_disk() -> None:
    """As on a system where neither the package nor the user's cache can be written."""
    namespace: dict[str, Any] = {}
    exec("def doubled(x):\n    return 2 * x", namespace)
    doubled = compiled(namespace["doubled"])
    assert doubled(3) == 6
    assert doubled(1.5) == 3.0


SUM = """
import numpy as np
import pytest

from dask_dgpu.kernels.sums import compensated
from dask_dgpu.kernels.sums import host
assert compensated.block_sum(np.ones(100), (0,)).value() == 100
print(sum(host.add_compensated.stats.cache_misses.values()))
"""


@pytest.mark.slow
def test_one_of_several_processes_compiles(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", SUM]
    started = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    misses = [int(process.communicate(timeout=100)[0]) for process in started]
    assert sorted(misses) == [0, 0, 1]
