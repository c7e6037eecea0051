from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
FIELDS = {
    "chunk", "date", "dtype", "machine", "median", "n", "ratio", "seconds", "versions", "what",
}  # fmt: skip


def lines_of(out: Path, script: str, *arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, str(BENCHMARKS / script), "--out", str(out), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    for line in lines:
        assert line.keys() >= FIELDS
        assert line["versions"].keys() == {
            "cupy", "dask", "distributed", "numpy", "python", "torch",
        }  # fmt: skip
        assert line["machine"].keys() == {"cores", "cpu", "gpus", "ranks"}
    return lines


@pytest.mark.cluster
@pytest.mark.slow
def test_summa_writes_every_figure(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "new" / "figures.jsonl", "summa.py", "--quick")
    assert [line["what"] for line in lines] == [
        "lowering, dask_dgpu",
        "lowering, dask",
        "numpy, one process",
        "rank program",
        "end to end, dask",
        "end to end, dask_dgpu",
        "end to end, dask, its best chunks",
    ]
    for line in lines:
        assert len(line["seconds"]) == 1
        assert line["median"] == line["seconds"][0] > 0
    gang, plain = lines[:2]
    assert gang["tasks"] < plain["tasks"]
    assert [line["ratio"] is None for line in lines] == [True] * 4 + [False] * 3
