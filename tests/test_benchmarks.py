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
            "cupy", "dask", "distributed", "numpy", "python", "torch", "ucxx",
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


@pytest.mark.slow
def test_comm_compares_the_transports(tmp_path: Path) -> None:
    arguments = ["--device", "cpu", "--ranks", "3", "--mib", "1", "--repetitions", "2"]
    lines = lines_of(tmp_path / "figures.jsonl", "comm.py", *arguments)
    assert [(line["what"], line["transport"]) for line in lines] == [
        (what, transport)
        for transport in ("gloo", "ucx")
        for what in ("all-reduce of 8 bytes", "all-to-all")
    ]
    for line in lines:
        assert len(line["seconds"]) == 2
        assert line["gigabytes_per_second"] > 0
    assert {line["bytes_sent"] for line in lines if line["what"] == "all-to-all"} == {699_050}


@pytest.mark.cluster
@pytest.mark.slow
def test_the_gpu_benchmark_runs_on_a_cpu(tmp_path: Path) -> None:
    arguments = ["--device", "cpu", "--n", "256", "--chunks", "64", "--repetitions", "1"]
    lines = lines_of(tmp_path / "figures.jsonl", "summa_gpu.py", *arguments, "--dtypes", "float64")
    assert [line["what"] for line in lines if "error" not in line] == [
        "no-op on every worker",
        "synchronize every worker",
        "one device's product",
        "first use, dask_dgpu",
        "end to end, dask_dgpu",
        "communicators made, first and later uses",
        "rank program",
        "correctness",
        "end to end, dask",
    ]
    figures = {line["what"]: line for line in lines}
    first, later = figures["communicators made, first and later uses"]["made"]
    assert first == later
    assert figures["correctness"]["error_relative"] < 1e-12


def test_a_trace_is_summed_up_by_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from summa_gpu import summary_of

    def copy(name: str, nbytes: int) -> dict[str, Any]:
        return {"cat": "gpu_memcpy", "name": name, "args": {"bytes": nbytes}}

    events = [
        {"cat": "kernel", "name": "gemm"},
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
        copy("Memcpy DtoH (Device -> Pinned)", 8),
        copy("Memcpy DtoH (Device -> Pageable)", 4096),
        copy("Memcpy HtoD (Pageable -> Device)", 16),
        copy("Memcpy DtoD (Device -> Device)", 32),
        copy("Memcpy PtoP (Device -> Device)", 64),
    ]
    assert summary_of(events) == {
        "kernels": 1,
        "to_host_copies": 2,
        "to_host_bytes": 4104,
        "to_host_largest": 4096,
        "to_device_bytes": 16,
        "within_bytes": 96,
    }
