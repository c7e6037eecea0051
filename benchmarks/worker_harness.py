"""What the benchmarks on GPUs run on workers, where this module is imported without CUDA."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

PLUGIN = "dask-dgpu"


def synchronize() -> None:
    """Let the GPU of a worker finish."""
    import cupy

    cupy.cuda.Device().synchronize()


def program_seconds(dask_worker: Any) -> float:
    """Return the seconds of the last program on a worker, its communicator not counted."""
    return float(dask_worker.plugins[PLUGIN].last_seconds)


def forget_program(dask_worker: Any) -> None:
    """Have :func:`program_seconds` return 0 until the next program has run."""
    dask_worker.plugins[PLUGIN].last_seconds = 0.0


def communicators(dask_worker: Any) -> int:
    """Return how many communicators a worker has made."""
    return int(dask_worker.plugins[PLUGIN].member.connected)


def start_trace(dask_worker: Any) -> None:
    """Record what the GPU of a worker does, whoever asks it to."""
    from torch.profiler import ProfilerActivity, profile

    dask_worker.benchmark_trace = profile(activities=[ProfilerActivity.CUDA])
    dask_worker.benchmark_trace.start()


def stop_trace(dask_worker: Any) -> dict[str, int]:
    """Return what was recorded: numbers of kernels, and bytes copied each way."""
    trace = dask_worker.benchmark_trace
    trace.stop()
    del dask_worker.benchmark_trace
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        trace.export_chrome_trace(str(path))
        return summary_of(json.loads(path.read_text())["traceEvents"])


def summary_of(events: list[dict[str, Any]]) -> dict[str, int]:
    """Sum up a trace.

    Parameters
    ----------
    events : list of dict
        As Chrome's trace format has them.

    Returns
    -------
    dict
        Numbers of kernels and of copies to the host, microseconds of kernels other than NCCL's,
        and bytes by direction.
    """
    found = {
        "kernels": 0,
        "kernels_us": 0,
        "to_host_copies": 0,
        "to_host_bytes": 0,
        "to_host_largest": 0,
    }
    found |= {"to_device_bytes": 0, "within_bytes": 0}
    for event in events:
        kind, name = event.get("cat"), event.get("name", "")
        nbytes = int(event.get("args", {}).get("bytes", 0))
        if kind == "kernel":
            found["kernels"] += 1
            found["kernels_us"] += 0 if "nccl" in name else int(event["dur"])
        elif kind == "gpu_memcpy" and "DtoH" in name:
            found["to_host_copies"] += 1
            found["to_host_bytes"] += nbytes
            found["to_host_largest"] = max(found["to_host_largest"], nbytes)
        elif kind == "gpu_memcpy" and "HtoD" in name:
            found["to_device_bytes"] += nbytes
        elif kind == "gpu_memcpy":
            found["within_bytes"] += nbytes
    return found
