from __future__ import annotations

from typing import Any

import pytest

from dask_dgpu import facts, settings
from dask_dgpu.errors import DgpuError

GLOO, NCCL, UCX = {"gloo"}, {"gloo", "nccl"}, {"gloo", "ucx"}
ALL = NCCL | UCX


class Workers:
    """A client whose workers have these transports, and perhaps a GPU each."""

    def __init__(self, transports: list[set[str]], gpu: bool) -> None:
        self.transports = transports
        self.gpu = facts.WorkerFacts(memory=2**30, host="here", pooled=True) if gpu else None

    def wait_for_workers(self, n_workers: int, timeout: float) -> None:
        if not self.transports:
            raise TimeoutError

    def run(self, function: Any, *args: Any) -> dict[str, Any]:
        found = self.transports if function is facts._transports else [self.gpu] * 2
        return dict(zip(("tcp://a", "tcp://b"), found, strict=True))

    def scheduler_info(self, n_workers: int) -> dict[str, Any]:
        workers = {"tcp://a": {"memory_limit": 2**31}, "tcp://b": {"memory_limit": 2**30}}
        return {"id": "Scheduler-1", "workers": workers if n_workers == -1 else {}}


def gathered(asked: str, transports: list[set[str]], gpu: bool) -> facts.ClusterFacts:
    workers: Any = Workers(transports, gpu)
    return facts.gather(workers, settings.read({"comm": asked}))


@pytest.mark.parametrize(
    ("asked", "transports", "gpu", "wanted"),
    [
        ("auto", [GLOO, GLOO], False, "gloo"),
        ("auto", [ALL, ALL], False, "gloo"),
        ("auto", [ALL, ALL], True, "nccl"),
        ("auto", [NCCL, UCX], True, "nccl"),
        ("auto", [ALL, UCX], True, "ucx"),
        ("auto", [UCX, UCX], True, "ucx"),
        ("auto", [GLOO, GLOO], True, "nccl"),
        ("ucx", [ALL, UCX], True, "ucx"),
        ("ucx", [ALL, UCX], False, "ucx"),
        ("nccl", [NCCL, ALL], True, "nccl"),
        ("gloo", [NCCL, ALL], False, "gloo"),
    ],
)
def test_transport(asked: str, transports: list[set[str]], gpu: bool, wanted: str) -> None:
    found = gathered(asked, transports, gpu)
    assert found.transport == wanted
    assert found.one_sided == (wanted == "nccl")
    assert found.device_memory == 2**30
    assert found.scheduler == "Scheduler-1"


@pytest.mark.parametrize(
    ("asked", "lacked"), [("ucx", r"ucxx \(pip install"), ("nccl", "torch with CUDA")]
)
def test_transport_that_a_worker_lacks(asked: str, lacked: str) -> None:
    with pytest.raises(ValueError, match=rf"dgpu.comm is '{asked}'.*tcp://b lacks {lacked}"):
        gathered(asked, [ALL, GLOO], gpu=True)


def test_no_worker_comes() -> None:
    with pytest.raises(DgpuError, match=r"client is .* without a worker for 30 s"):
        gathered("auto", [], gpu=False)


def test_packages_of_this_process() -> None:
    assert facts._transports() >= {"gloo", "ucx"}
