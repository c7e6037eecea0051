from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.paths import with_project

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
METHODS = ("compensated", "reproducible")
WAYS = ("gangs", "ours", "plain")
SMALL = ("add", "product", "total", "loop", "gradients", "gradients_together")
PROFILED = ("without", "within")
FIELDS = {
    "chunk", "date", "dtype", "machine", "median", "n", "ratio", "seconds", "versions", "what",
}  # fmt: skip


def lines_of(out: Path, script: str, *arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.support.script", str(BENCHMARKS / script)]
    command += ["--out", str(out), *arguments]
    environment = with_project(os.environ)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
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


@pytest.mark.cluster
@pytest.mark.slow
def test_calls_writes_every_figure(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "figures.jsonl", "calls.py", "--quick")
    ways = [line["what"].rpartition(", ")[2] for line in lines]
    plain = 4 * ["dask_dgpu"] + 4 * ["dask"] + 3 * ["numpy"]
    assert ways == ["jit"] * 4 + ["while_loop"] + plain + ["jax"] * (4 if find_spec("jax") else 0)
    assert all(line["median"] > 0 for line in lines)


@pytest.mark.cluster
@pytest.mark.slow
def test_contract_writes_every_figure(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "figures.jsonl", "contract.py", "--quick")
    cases = [line["what"].removesuffix(", dask") for line in lines[::2]]
    assert cases[0] == "matmul"
    assert [line["what"] for line in lines[1::2]] == [f"{case}, dask_dgpu" for case in cases]
    for line in lines:
        assert line["median"] == line["seconds"][0] > 0
        assert line["ratio"] > 0


@pytest.mark.slow
def test_overlap_writes_every_figure(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "figures.jsonl", "overlap.py", "--quick")
    names = ("product", "redistribution", "transform and redistribution")
    cases = [(network, name) for network in ("loopback", "1 Gbit/s") for name in names]
    assert list(dict.fromkeys((line["network"], line["what"]) for line in lines)) == cases
    for case in cases:
        whole, *parted = (line for line in lines if (line["network"], line["what"]) == case)
        assert whole["parts"] == whole["ratio"] == 1
        assert whole["predicted_saved"] == 0
        assert whole["predicted"] == pytest.approx(whole["median"])
        assert min(line["parts"] for line in parted) > 1
    for line in lines:
        assert 0 < line["exposed"] <= line["median"]
        assert line["hidden"] >= 0


@pytest.mark.slow
def test_comm_compares_the_transports(tmp_path: Path) -> None:
    arguments = ["--device", "cpu", "--ranks", "3", "--mib", "1", "--repetitions", "2"]
    lines = lines_of(tmp_path / "figures.jsonl", "comm.py", *arguments)
    assert [(line["what"], line["transport"]) for line in lines] == [
        (what, transport)
        for transport in ("tcp", "dask", "ucx")
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


@pytest.mark.cluster
@pytest.mark.slow
def test_the_benchmark_of_skinny_products_runs_on_a_cpu(tmp_path: Path) -> None:
    sizes = ["--rows", "4096", "--columns", "16", "--chunk", "512", "--repetitions", "1"]
    arguments = ["--device", "cpu", *sizes]
    lines = lines_of(tmp_path / "figures.jsonl", "skinny_gpu.py", *arguments)
    assert not any("error" in line for line in lines)
    for product in ("x.T @ x", "x @ w", "x.T @ v", "covariance"):
        assert [line["what"] for line in lines if line.get("product") == product] == [
            "one device's share",
            "first use, dask_dgpu",
            "end to end, dask_dgpu",
            "communicators made, first and later uses",
            "rank program",
            "end to end, dask",
        ]


@pytest.mark.cluster
@pytest.mark.slow
def test_pencil_fft_writes_every_figure(tmp_path: Path) -> None:
    out = tmp_path / "figures.jsonl"
    nothing = tmp_path / "python"  # in a folder without mpiexec, and without mpi4py-fft
    nothing.write_text("#!/bin/sh\nexit 1\n")
    nothing.chmod(0o755)
    lines = lines_of(out, "pencil_fft.py", "--quick", "--mpi-python", str(nothing))
    assert [line["what"] for line in lines] == [
        "fft2, scipy, one process",
        "fft2, rank program",
        "fft2, mpi4py-fft",
        "fft2, end to end, dask_dgpu",
        "fft2, end to end, dask, tasks",
        "fft2, end to end, dask, p2p",
        "fft2, end to end, dask, tasks, same workers",
        "fft2, end to end, dask, p2p, same workers",
        "rechunk, end to end, dask_dgpu",
        "rechunk, end to end, dask, tasks",
        "rechunk, end to end, dask, p2p",
    ]
    figures = {line["what"]: line for line in lines}
    absent = figures.pop("fft2, mpi4py-fft")
    assert absent["not_installed"] in ("mpiexec", "mpi4py-fft")
    assert absent["seconds"] is None
    for line in figures.values():
        assert len(line["seconds"]) == 1
        assert line["median"] == line["seconds"][0] > 0
    for what in ("fft2", "rechunk"):
        ratios = [figures[f"{what}, end to end, dask, {way}"]["ratio"] for way in ("tasks", "p2p")]
        assert min(ratios) == 1


@pytest.mark.cluster
@pytest.mark.slow
def test_halo_writes_every_figure(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "figures.jsonl", "halo.py", "--quick")
    assert [line["what"] for line in lines] == [
        "jacobi, numpy",
        "jacobi, numba",
        "jacobi, rank program, threads",
        "jacobi, rank program",
        "jacobi, end to end, dask_dgpu",
    ]
    for line in lines:
        assert len(line["seconds"]) == 1
        assert line["median"] == pytest.approx(line["step_seconds"] * line["steps"])
    assert [line["ratio"] is None for line in lines] == [True] * 3 + [False] * 2


@pytest.mark.cluster
@pytest.mark.slow
def test_region_writes_every_figure(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "figures.jsonl", "region.py", "--quick")
    ways = ["dask_dgpu", "dask_dgpu, a gang for each collective", "dask"]
    assert [line["what"] for line in lines] == [
        "ten products, numpy",
        *(f"spectral Poisson solve, {way}" for way in ways),
        *(f"ten products, {way}" for way in ways),
    ]
    assert [line["ratio"] for line in lines][3::3] == [1, 1]
    for line in lines:
        assert len(line["seconds"]) == 1
        assert line["median"] == line["seconds"][0] > 0


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_suite_writes_a_line_for_each_program(tmp_path: Path) -> None:
    names = ["covariance", "softmax", "normal_equations"]
    table = tmp_path / "table.md"
    arguments = ["--quick", "--alone", "numpy", "jax", "--table", str(table), "--only", *names]
    lines = lines_of(tmp_path / "figures.jsonl", "suite.py", *arguments)
    floor, *ours, totals = lines[:5]
    alone = lines[5:]
    written = ["empty task on each worker", *names, "all programs"]
    assert [line["what"] for line in [floor, *ours, totals]] == written
    assert not any("error" in line for line in lines)
    for line in ours:
        ways = ("seconds", "plain", "plain_again")
        assert [len(line[way]) for way in ways] == [1, 1, 1]
        assert line["ratio"] == pytest.approx(line["median"] / line["plain_median"])
        assert min(line["predicted"], line["plain_predicted"]) > 0
        assert [len(line["peaks"][way]) for way in ("ours", "plain")] == [4, 4]
    assert totals.keys() >= {"ratio", "slower", "within_twice", "plain_within_twice"}
    ways = ["numpy", "jax"] if find_spec("jax") else ["numpy"]
    wanted = [f"{name}, {way}" for way in ways for name in names]
    absent = [] if find_spec("jax") else ["all programs, jax"]
    assert [line["what"] for line in alone] == [*wanted, *absent]
    assert all(line["peak"] >= 0 for line in alone[: len(wanted)])
    assert all(line["not_installed"] == "jax" for line in alone[len(wanted) :])
    title, _, *rows = (line.strip("| ").split(" | ") for line in table.read_text().splitlines())
    assert title[:3] == ["program", "plain", "ours"]
    assert {"NumPy", "ours / NumPy", "peak, ours", "peak, plain", "peak, NumPy"} <= set(title)
    assert [row[0] for row in rows] == ["covariance", "softmax", "normal equations"]
    assert {len(row) for row in rows} == {len(title)}


@pytest.mark.cluster
@pytest.mark.slow
def test_poisson_writes_every_figure(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "figures.jsonl", "poisson.py", "--quick")
    boundaries = ["zero", "reflect", "periodic"]
    ways = ["dask_dgpu", "dask, tasks", "dask, p2p"]
    assert [line["what"] for line in lines] == [
        *(f"{boundary}, scipy, one process" for boundary in boundaries),
        *(f"{boundary}, end to end, {way}" for boundary in boundaries for way in ways),
    ]
    for line in lines:
        assert len(line["seconds"]) == 1
        assert line["median"] == line["seconds"][0] > 0
    ratios = {line["what"]: line["ratio"] for line in lines[3:]}
    for boundary in boundaries:
        assert min(ratios[f"{boundary}, end to end, {way}"] for way in ways[1:]) == 1


@pytest.mark.cluster
@pytest.mark.slow
def test_map_overlap_writes_every_figure(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "figures.jsonl", "map_overlap.py", "--quick")
    assert [line["what"] for line in lines] == [
        "one step, numpy",
        *["a step of 5, dask", "a step of 5, dask_dgpu"] * 3,
        "a step of 10, dask_dgpu",
    ]
    assert [line["boundary"] for line in lines[1::2]] == [0, "periodic", "reflect", 0]
    assert [line["ratio"] for line in lines[1:7:2]] == [1, 1, 1]
    for line in lines:
        assert len(line["seconds"]) == 1
        assert line["median"] == line["seconds"][0] > 0


@pytest.mark.cluster
@pytest.mark.slow
def test_conv2d_writes_every_figure(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "figures.jsonl", "conv2d.py", "--quick")
    ways = ["torch, one process", "rank program", "end to end, dask", "end to end, dask_dgpu"]
    assert [line["what"] for line in lines] == ways * 2
    assert [line["ratio"] for line in lines[::4]] == [1, 1]
    for line in lines:
        assert len(line["seconds"]) == 1
        assert line["median"] == line["seconds"][0] > 0


@pytest.mark.cluster
@pytest.mark.slow
def test_shard_map_writes_every_figure(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "figures.jsonl", "shard_map.py", "--quick")
    ways = ["NumPy, one process", *(f"end to end, {way}" for way in ("dask", "dask_dgpu"))]
    assert [line["what"] for line in lines] == [*ways, "end to end, shard_map"]
    assert all(line["median"] == line["seconds"][0] > 0 for line in lines)


@pytest.mark.slow
def test_fused_writes_every_figure(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "figures.jsonl", "fused.py", "--quick")
    names = ["gelu", "black_scholes", "softmax", "layer_norm", "standardise", "weighted_sum"]
    ways = [f"{name}, {way}" for name in names for way in ("numpy", "tiles")]
    assert [line["what"] for line in lines] == ways * 2
    assert [line["ratio"] for line in lines[::2]] == [1] * 12
    assert all(line["difference"] == 0 for line in lines if line["what"].startswith("gelu"))
    assert all(line["error"] < 1e-5 for line in lines)


@pytest.mark.cluster
@pytest.mark.slow
def test_kahan_sum_writes_every_figure(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "figures.jsonl", "kahan_sum.py", "--quick")
    kernels = ["numpy", "compensated", "reproducible"]
    ways = ["dask", "dask, dtype float64", "compensated", "reproducible"]
    assert [line["what"] for line in lines] == [
        *(f"one block, {way}" for _ in range(2) for way in kernels),
        *(f"sum, {way}" for _ in range(2) for way in ways),
    ]
    assert [line["ratio"] for line in lines if line["what"].endswith(("numpy", "dask"))] == [1] * 4
    for line in lines:
        assert len(line["seconds"]) == 1
        assert line["median"] == line["seconds"][0] > 0
    errors = {(line["what"], line["axis"]): line["relative_error"] for line in lines[6:]}
    for way in ways[1:]:
        assert max(errors[f"sum, {way}", axis] for axis in (None, 0)) <= np.finfo("float32").eps


@pytest.mark.cluster
@pytest.mark.slow
def test_the_pencil_fft_benchmark_for_gpus_runs_on_a_cpu(tmp_path: Path) -> None:
    sizes = ["--n", "64", "--cubes", "16", "--lines", "4096", "--repetitions", "1"]
    sizes += ["--dtype", "complex128"]
    lines = lines_of(tmp_path / "figures.jsonl", "pencil_fft_gpu.py", "--device", "cpu", *sizes)
    first = ["no-op on every worker", "synchronize every worker"]
    kinds = [
        "first use, dask_dgpu",
        "end to end, dask_dgpu",
        "communicators made, first and later uses",
        "rank program",
        "correctness",
    ]
    cases = ["fft2", "rechunk", "fftn", "fft"]
    gangs = [f"{case}, {kind}" for case in cases for kind in kinds]
    plain = [f"{case}, end to end, dask" for case in cases[:-1]]
    assert [line["what"] for line in lines if "error" not in line] == [*first, *gangs, *plain]
    figures = {line["what"]: line for line in lines}
    for case in cases:
        before, after = figures[f"{case}, communicators made, first and later uses"]["made"]
        assert before == after
    for case in cases[:-1]:
        assert figures[f"{case}, correctness"]["error_relative"] < 1e-14
    assert figures["rechunk, correctness"]["error_relative"] == 0
    for case in ("fft2", "fft"):
        assert figures[f"{case}, correctness"]["error_inverse"] < 1e-14
    program = figures["rechunk, rank program"]
    assert program["sent_bytes"] >= 64 * 64 * 16 // 4 * 3 // 4
    assert program["gbytes_a_second"] > 0


@pytest.mark.cluster
@pytest.mark.slow
def test_the_kahan_sum_benchmark_for_gpus_runs_on_a_cpu(tmp_path: Path) -> None:
    arguments = ["--device", "cpu", "--values", "4096", "--repetitions", "1"]
    lines = lines_of(tmp_path / "figures.jsonl", "kahan_sum_gpu.py", *arguments)
    kernels = [f"blocks where they are, {w}" for w in ("torch", "dask", *METHODS)]
    ways = [f"end to end, {way}" for way in ("dask", *METHODS)]
    first = ["no-op on every worker", "synchronize every worker"]
    assert [line["what"] for line in lines if "error" not in line] == [
        *first,
        *[*kernels, *ways, *kernels] * 3,
    ]
    for line in lines[2:]:
        assert line["median"] > 0
        assert line["ratio"] > 0


@pytest.mark.cluster
@pytest.mark.slow
def test_the_halo_benchmark_for_gpus_runs_on_a_cpu(tmp_path: Path) -> None:
    sizes = ["--n", "64", "--iterations", "20", "--steps", "6", "--plain-steps", "2"]
    arguments = ["--device", "cpu", *sizes, "--repetitions", "1"]
    lines = lines_of(tmp_path / "figures.jsonl", "halo_gpu.py", *arguments)
    first = ["no-op on every worker", "synchronize every worker"]
    uses = [
        "first use, dask_dgpu",
        "end to end, dask_dgpu",
        "communicators made, first and later uses",
        "rank program",
    ]
    subsets = [f"jacobi on {ranks} of 4, {kind}" for ranks in (1, 2) for kind in uses]
    cases = ["jacobi", "map_overlap, expression", "map_overlap, fused kernel"]
    gangs = [f"{case}, {kind}" for case in cases for kind in [*uses, "correctness"]]
    plain = [f"{case}, end to end, dask" for case in cases[1:]]
    assert [line["what"] for line in lines if "error" not in line] == [
        *first,
        *subsets,
        *gangs,
        *plain,
    ]
    figures = {line["what"]: line for line in lines}
    for case in cases:
        assert figures[f"{case}, correctness"]["error_relative"] < 20 * np.finfo("float32").eps
    for kind in ("end to end, dask_dgpu", "rank program"):
        one, two = (figures[f"jacobi on {ranks} of 4, {kind}"] for ranks in (1, 2))
        every = figures[f"jacobi, {kind}"]
        assert [line["rows"] for line in (one, two, every)] == [16, 32, 64]
        for line in (one, two, every):
            assert line["iteration_us"] == pytest.approx(line["median"] / 20 * 1e6)
            ratio = one["iteration_us"] / line["iteration_us"]
            assert line["efficiency"] == pytest.approx(ratio)
    for case, steps in zip(cases[1:] * 2, [6, 6, 2, 2], strict=True):
        line = figures[f"{case}, end to end, dask{'_dgpu' if steps == 6 else ''}"]
        assert line["step_ms"] == pytest.approx(line["median"] / steps * 1e3)


@pytest.mark.slow
def test_jacobis_iteration_by_torch_runs_on_a_cpu(tmp_path: Path) -> None:
    arguments = ["--device", "cpu", "--n", "64", "--iterations", "20", "--repetitions", "1"]
    (line,) = lines_of(tmp_path / "figures.jsonl", "peers/halo_torch.py", *arguments)
    assert line["what"] == "jacobi, torch"
    assert line["iteration_us"] == pytest.approx(line["median"] / 20 * 1e6)
    assert line["error_relative"] < 20 * np.finfo("float32").eps


@pytest.mark.gpu
def test_the_ladder_writes_every_figure(tmp_path: Path) -> None:
    arguments = ["--kib", "64", "8", "--blocks", "1", "--repetitions", "1"]
    lines = lines_of(tmp_path / "figures.jsonl", "pack_gpu.py", *arguments)
    ends = ["one launch", "one launch, host ahead", "plain copy", "plain copy, host ahead"]
    rungs = [
        "a stream, an allocation, a launch and a wait each",
        "an allocation, a launch and a wait each",
        "an allocation and a launch each",
        "a launch each, pooled memory",
        "one launch, described anew",
        *ends,
    ]
    assert [line["what"] for line in lines] == [
        f"{what}, {way}" for ways in (rungs, ends) for what in ("unpack", "pack") for way in ways
    ]
    for line in lines:
        assert line["median"] > 0
        assert line["gbytes_a_second"] > 0
        assert line.get("elements_differing", 0) == 0


def test_a_trace_is_summed_up_by_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from worker_harness import summary_of

    def copy(name: str, nbytes: int) -> dict[str, Any]:
        return {"cat": "gpu_memcpy", "name": name, "args": {"bytes": nbytes}}

    events = [
        {"cat": "kernel", "name": "gemm", "dur": 40.5},
        {"cat": "kernel", "name": "ncclDevKernel_SendRecv", "dur": 70.0},
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
        copy("Memcpy DtoH (Device -> Pinned)", 8),
        copy("Memcpy DtoH (Device -> Pageable)", 4096),
        copy("Memcpy HtoD (Pageable -> Device)", 16),
        copy("Memcpy DtoD (Device -> Device)", 32),
        copy("Memcpy PtoP (Device -> Device)", 64),
    ]
    assert summary_of(events) == {
        "kernels": 2,
        "kernels_us": 40,
        "to_host_copies": 2,
        "to_host_bytes": 4104,
        "to_host_largest": 4096,
        "to_device_bytes": 16,
        "within_bytes": 96,
    }


@pytest.mark.cluster
@pytest.mark.slow
def test_contract_gpu_writes_every_figure(tmp_path: Path) -> None:
    sizes = {"n": 64, "batch": 16, "inner": 4, "images": 8, "pixels": 16}
    sizes |= {"planes": 4, "side": 64}
    given = [text for name, value in sizes.items() for text in (f"--{name}", str(value))]
    arguments = ["--device", "cpu", "--repetitions", "1", *given]
    lines = lines_of(tmp_path / "figures.jsonl", "contract_gpu.py", *arguments)
    assert not [line for line in lines if "error" in line]
    ran = [line["case"] for line in lines if line["what"] == "rank program"]
    assert len(ran) == len(set(ran)) == 7
    shares = [line["case"] for line in lines if line["what"] == "one device's share"]
    assert shares == ["batched product", "conv2d of images", "conv2d of one image"]


@pytest.mark.cluster
@pytest.mark.slow
def test_rates_of_clusters_of_each_size(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "figures.jsonl", "rates.py", "--device", "cpu", "--most", "2")
    assert [line["workers"] for line in lines] == [1, 1, 2, 2]
    for line in lines:
        assert line["figures"]["memory_bandwidth"] > 0
        assert ("latency" in line["figures"]) == (line["workers"] > 1)


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rounds_writes_every_figure(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "figures.jsonl", "rounds.py", "--quick")
    calls = [f"{call}, {way}" for call in SMALL for way in WAYS]
    wanted = ["empty task on each worker", *calls, "20 products in a row"]
    assert [line["what"] for line in lines] == wanted
    assert all(line["median"] > 0 for line in lines)


@pytest.mark.cluster
@pytest.mark.slow
def test_profiler_writes_every_figure(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "figures.jsonl", "profiler.py", "--quick")
    ways = [f"{call}, {way}" for call in ("gangs", "product", "tasks") for way in PROFILED]
    assert [line["what"] for line in lines] == [*ways, "a block without work"]
    assert all(line["median"] > 0 for line in lines)


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("option", "warm_up"), [("--cold", "none"), ("--examples", "examples")])
def test_warmup_writes_first_and_later_uses(tmp_path: Path, option: str, warm_up: str) -> None:
    arguments = ["--quick", option, "--only", "gelu", "covariance"]
    lines = lines_of(tmp_path / "figures.jsonl", "warmup.py", *arguments)
    before = [] if warm_up == "none" else ["warm-up"]
    assert [line["what"] for line in lines] == [*before, "gelu", "covariance", "all programs"]
    assert {line["warm_up"] for line in lines} == {warm_up}
    *_, gelu, covariance, every = lines
    assert every["most_more"] == max(gelu["more"], covariance["more"])


@pytest.mark.cluster
@pytest.mark.slow
def test_structures_writes_every_program(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "figures.jsonl", "structures.py", "--quick")
    assert len(lines) == 33 + 4
    assert all(line["median"] > 0 < line["first"] for line in lines[:33])
    assert all(line["reading"] > 0 < line["ratio"] for line in lines[33:])


@pytest.mark.slow
def test_building_writes_every_program_that_dask_can_build(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "figures.jsonl", "building.py", "--quick")
    assert len(lines) == 32
    assert all(line["least"] > 0 < line["plain"] for line in lines)


@pytest.mark.slow
def test_steps_writes_every_kind(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "figures.jsonl", "steps.py", "--quick", "--profile")
    assert len(lines) == 8
    assert all(line["us_a_step"] > 0 < line["alone_us_a_step"] for line in lines)


@pytest.mark.gpu
def test_steps_on_a_gpu(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "figures.jsonl", "steps.py", "--quick", "--profile", "--cuda")
    assert len(lines) == 4
    assert all(line["us_a_step"] > 0 for line in lines)


@pytest.mark.slow
def test_programs_run_without_dask(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "figures.jsonl", "peers/suite_alone.py", "numpy", "--quick")
    assert len(lines) == 33
    assert all(line["median"] > 0 for line in lines)


@pytest.mark.slow
def test_hosts_predicts_every_case(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "figures.jsonl", "hosts.py", "--quick")
    assert [line["hosts"] for line in lines] == [1, 2] * 3
    assert all(line["predicted_s"] > 0 for line in lines)
    assert all((line["link_bytes"] > 0) == (line["hosts"] > 1) for line in lines)


@pytest.mark.hosts
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_hosts_linked_writes_every_way(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "figures.jsonl", "hosts_linked.py", "--quick")
    assert "host_bandwidth" in lines[0]["figures"]
    assert len(lines) == 1 + 5 * 3
    assert all(line["median"] > 0 < line["link_bytes"] for line in lines[1:])


@pytest.mark.hosts
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_hosts_faults_writes_every_fault(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "figures.jsonl", "hosts_faults.py", "--quick")
    assert sum(lines.pop()["ends"].values()) == len(lines) == 2
    assert all(line["end"] and line["median"] >= 0 for line in lines)


@pytest.mark.cluster
@pytest.mark.slow
def test_batches_writes_both_ways(tmp_path: Path) -> None:
    whole, limited = lines_of(tmp_path / "figures.jsonl", "batches.py", "--quick")
    assert [whole["what"], limited["what"]] == ["product, no limit", "product, limited"]
    assert whole["batches"] == 1 < limited["batches"]
    assert limited["planned_bytes"] <= limited["limit_bytes"]
    for line in (whole, limited):
        assert line["median"] > 0 < line["worker_rss_grown"]
        assert line["largest_error"] < 1e-10


@pytest.mark.cluster
@pytest.mark.slow
def test_batches_gpu_writes_every_figure(tmp_path: Path) -> None:
    """It takes a GPU if there is one, otherwise NumPy."""
    lines = lines_of(tmp_path / "figures.jsonl", "batches_gpu.py", "--quick")
    assert not [line for line in lines if "error" in line]
    limits = ["pinned copies", "copies on the host", "product on the GPU"]
    calls = ["product", "fft2", "sum", "product, torch, pinned copies", "product beside torch"]
    assert [line["what"] for line in lines] == [*limits, *calls]
    product, transform, *_ = lines[len(limits) :]
    assert product["batches"] > 1
    assert transform["passes"] == 2
    several = lines_of(tmp_path / "several.jsonl", "batches_gpu.py", "--quick", "--workers", "2")
    assert [line["what"] for line in several] == [*limits, "product"]
    assert several[-1]["workers"] == 2


@pytest.mark.cluster
@pytest.mark.slow
def test_the_benchmark_of_traffic_runs_on_a_cpu(tmp_path: Path) -> None:
    arguments = ["--device", "cpu", "--quick", "--only", "cum"]
    copy, *lines = lines_of(tmp_path / "figures.jsonl", "traffic_gpu.py", *arguments)
    assert copy["nbytes"] == 2 * 4 * 128**2
    assert [line["what"] for line in lines] == [
        f"{name}, axis {axis}" for name in ("cumsum", "cumprod") for axis in (0, 1)
    ]
    assert all(len(line["seconds"]) == 3 and line["ratio"] is not None for line in lines)
