"""What must not happen: needless imports, mysterious failures, a heavy scheduler."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from distributed import Client

import dask_dgpu as dgpu

SCHEDULER_WITHOUT_DEVICE_LIBRARIES = """
import sys
sys.modules["torch"] = sys.modules["cupy"] = None
from distributed.cli.dask_scheduler import main
main()
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@contextmanager
def process(*arguments: str) -> Iterator[None]:
    child = subprocess.Popen([sys.executable, *arguments], stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        child.terminate()
        child.wait(20)


def test_import_is_light() -> None:
    result = run(
        "import dask_dgpu, graph_opt, sys\n"
        "print({'torch', 'cupy', 'numba', 'pynvml', 'rmm'} & set(sys.modules))\n"
        "dask_dgpu.enable(when='always')\n"
        "print({'torch', 'cupy', 'numba', 'jsonschema'} & set(sys.modules))"
    )
    assert (result.stdout, result.stderr) == ("set()\nset()\n", "")


@pytest.mark.slow
@pytest.mark.cluster
def test_scheduler_needs_neither_torch_nor_cupy(tmp_path: Path) -> None:
    file = str(tmp_path / "scheduler.json")
    scheduler = ["-c", SCHEDULER_WITHOUT_DEVICE_LIBRARIES, "--port", "0", "--no-dashboard"]
    workers = ["-m", "distributed.cli.dask_worker", "--nworkers", "2", "--nthreads", "1"]
    options = ["--scheduler-file", file]
    with (
        process(*scheduler, "--host", "127.0.0.1", *options),
        process(*workers, "--no-dashboard", "--local-directory", str(tmp_path), *options),
        Client(scheduler_file=file) as client,
    ):
        client.wait_for_workers(2, timeout=60)
        a = np.arange(120.0).reshape(10, 12)
        x = da.from_array(a, chunks=(3, 5))
        assert client.run_on_scheduler(lambda: sys.modules["torch"] is sys.modules["cupy"] is None)
        with dgpu.enable(client, on_error="raise", when="always"):
            product = da.matmul(x, x.T)
            assert dgpu.explain(product).rewritten
            np.testing.assert_allclose(product.compute(), a @ a.T)


@pytest.mark.slow
@pytest.mark.cluster
def test_missing_main_guard_gives_one_clear_message(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text("import dask_dgpu\ndask_dgpu.start(n_workers=2)\n")
    with subprocess.Popen(
        [sys.executable, str(script)], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        try:
            _, stderr = child.communicate(timeout=60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    assert child.returncode != 0
    assert stderr.count('if __name__ == "__main__"') == 1
    assert "freeze_support" not in stderr


@pytest.mark.slow
def test_query_planning_that_came_too_late_is_ignored() -> None:
    result = run(
        "import dask, dask_dgpu\n"
        "dask.config.set({'array.query-planning': True})\n"
        "dask_dgpu.enable()"
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_query_planning_is_refused_in_one_sentence() -> None:
    result = run("import dask_dgpu\ndask_dgpu.enable()", DASK_ARRAY__QUERY_PLANNING="true")
    assert result.returncode != 0
    last_line = result.stderr.strip().splitlines()[-1]
    assert last_line.startswith("dask_dgpu.errors.")
    assert "array.query-planning" in last_line
