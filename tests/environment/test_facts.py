from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from distributed.comm.core import CommClosedError
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.environment import facts, settings
from dask_dgpu.environment.transports import missing_transports
from dask_dgpu.environment.workers import ask_workers
from dask_dgpu.errors import DgpuError
from dask_dgpu.runtime.tasks import PLUGIN

CPUS = {"dask", "tcp"}
NCCL, UCX = CPUS | {"nccl"}, CPUS | {"ucx"}
ALL = NCCL | UCX
NEEDED = {"nccl": "torch with CUDA", "ucx": "ucxx (pip install 'dask-dgpu[ucx]')"}
GB = 10**9


class Workers:
    """A client whose workers have these transports, and perhaps a GPU each."""

    def __init__(self, transports: list[set[str]], gpu: bool, protocol: str = "tcp") -> None:
        self.transports = transports
        self.protocol = protocol
        self.plugin: Any = None  # of the scheduler
        self.gpu = gpu

    def wait_for_workers(self, n_workers: int, timeout: float) -> None:
        if not self.transports:
            raise TimeoutError

    def run(self, function: Any, *args: Any, on_error: str) -> dict[str, Any]:
        assert function is facts.probe
        found = {}
        for name, transports, memory in zip("ab", self.transports, (None, 2**30), strict=True):
            missing: dict[Any, str] = {each: NEEDED[each] for each in ALL - transports}
            found[f"{self.protocol}://{name}"] = (
                facts.WorkerFacts("cuda", 2**30, "a GPU", missing, "here", pooled=True)
                if self.gpu
                else facts.WorkerFacts("cpu", memory, "a CPU", missing)
            )
        return found

    def run_on_scheduler(self, function: Any, *args: Any) -> Any:
        plugins = {} if self.plugin is None else {PLUGIN: self.plugin}
        workers = {address: SimpleNamespace(nthreads=n) for address, n in (("a", 2), ("b", 3))}
        scheduler = SimpleNamespace(id="Scheduler-1", plugins=plugins, workers=workers)
        return function(*args, dask_scheduler=scheduler)


class Losing:
    """A client whose function fails on each worker with its error, if there is one."""

    def __init__(self, *answers: Any) -> None:
        self.answers = answers

    def run(self, function: Any, *args: Any, on_error: str) -> dict[str, Any]:
        assert on_error == "return"
        return dict(zip("abc", self.answers, strict=False))


def test_lost_workers_are_left_out() -> None:
    client: Any = Losing(1, CommClosedError("closed"), 3)
    assert ask_workers(client, int) == {"a": 1, "c": 3}


def test_all_workers_are_lost() -> None:
    client: Any = Losing(CommClosedError("closed"), OSError("timed out"))
    with pytest.raises(DgpuError, match="lost all workers: a, b"):
        ask_workers(client, int)


def test_the_error_of_a_worker() -> None:
    client: Any = Losing(CommClosedError("closed"), ValueError("of the function"), 3)
    with pytest.raises(ValueError, match="of the function"):
        ask_workers(client, int)


def gathered(
    asked: str, transports: list[set[str]], gpu: bool, protocol: str = "tcp", **more: Any
) -> facts.ClusterFacts:
    workers: Any = Workers(transports, gpu, protocol)
    return facts.gather(workers, settings.read({"comm": asked, **more}))


@pytest.mark.parametrize(
    ("asked", "transports", "gpu", "wanted"),
    [
        ("auto", [CPUS, ALL], False, "tcp"),
        ("dask", [CPUS, ALL], False, "dask"),
        ("auto", [ALL, ALL], True, "nccl"),
        ("auto", [NCCL, UCX], True, "nccl"),
        ("auto", [ALL, UCX], True, "ucx"),
        ("auto", [UCX, UCX], True, "ucx"),
        ("auto", [CPUS, CPUS], True, "nccl"),
        ("ucx", [ALL, UCX], True, "ucx"),
        ("ucx", [ALL, UCX], False, "ucx"),
        ("nccl", [NCCL, ALL], True, "nccl"),
        ("tcp", [NCCL, ALL], False, "tcp"),
    ],
)
def test_transport(asked: str, transports: list[set[str]], gpu: bool, wanted: str) -> None:
    found = gathered(asked, transports, gpu)
    assert found.transport == wanted
    assert found.one_sided == (wanted == "nccl")
    assert found.device_memory == 2**30
    assert found.scheduler == "Scheduler-1"
    assert found.threads == (1 if gpu else 3)


@pytest.mark.parametrize(
    ("asked", "lacked"), [("ucx", r"ucxx \(pip install"), ("nccl", "torch with CUDA")]
)
def test_transport_that_a_worker_lacks(asked: str, lacked: str) -> None:
    with pytest.raises(ValueError, match=rf"dgpu.comm .*, got '{asked}': .*tcp://b lacks {lacked}"):
        gathered(asked, [ALL, CPUS], gpu=True)


@pytest.mark.parametrize("asked", ["dask", "tcp"])
def test_transport_of_arrays_on_the_host_alone(asked: str) -> None:
    with pytest.raises(ValueError, match=f"auto, nccl or ucx for workers on GPUs, got '{asked}'"):
        gathered(asked, [ALL, ALL], gpu=True)


@pytest.mark.parametrize(
    ("asked", "gpu", "more", "wanted"),
    [
        ("auto", False, {}, "dask"),
        ("dask", False, {}, "dask"),
        ("auto", False, {"comm_plaintext": True}, "dask"),
        ("ucx", False, {"comm_plaintext": True, "comm_ports": "30000-30100"}, "ucx"),
        ("auto", True, {"comm_plaintext": True}, "nccl"),
        ("auto", True, {"comm_plaintext": True, "comm_ports": "30000-30100"}, "ucx"),
        ("auto", False, {"comm_plaintext": True, "comm_ports": "30000-30100"}, "dask"),
    ],
)
def test_transport_with_tls(asked: str, gpu: bool, more: Any, wanted: str) -> None:
    for protocol in ("tls", "wss"):
        assert gathered(asked, [ALL, ALL], gpu, protocol, **more).transport == wanted


@pytest.mark.parametrize(
    ("asked", "gpu", "transport"),
    [("tcp", False, "tcp"), ("ucx", False, "ucx"), ("auto", True, "nccl"), ("ucx", True, "ucx")],
)
def test_plain_text_with_tls_needs_permission(asked: str, gpu: bool, transport: str) -> None:
    sentence = f"dgpu.comm.plaintext to be True for the transport '{transport}' on a cluster with"
    with pytest.raises(ValueError, match=sentence):
        gathered(asked, [ALL, ALL], gpu, "tls")


@pytest.mark.parametrize(("asked", "gpu"), [("tcp", False), ("nccl", True), ("auto", True)])
def test_ports_that_a_transport_cannot_limit(asked: str, gpu: bool) -> None:
    with pytest.raises(ValueError, match=r"dgpu.comm.ports to be null for the transport '[tn]"):
        gathered(asked, [NCCL, NCCL], gpu, comm_ports="30000-30100")


def test_no_worker_comes() -> None:
    with pytest.raises(DgpuError, match="expected client to have a worker within 30 s, got none"):
        gathered("auto", [], gpu=False)


def test_packages_of_this_process() -> None:
    assert not missing_transports().keys() & {"dask", "tcp", "ucx"}


@given(st.integers(0, 2**50), st.integers(0, 2**50))
def test_memory_is_rounded_to_few_values(one: int, other: int) -> None:
    small, large = sorted([one, other])
    assert facts.rounded(small) <= facts.rounded(large) <= large
    assert 16 * (large - facts.rounded(large)) <= large
    assert facts.rounded(facts.rounded(large)) == facts.rounded(large)
    assert f"{facts.rounded(large):b}".rstrip("0")[5:] == ""


@pytest.mark.parametrize(
    ("limit", "own", "blocks", "wanted"),
    [
        (GB, 300, 100, 8 * GB // 10 - 200),  # at 0.8 of its limit Dask pauses it
        (GB, 100, 300, 8 * GB // 10),
        (1000, 799, 0, 1),
        (1000, 800, 0, 0),
        (200, 300, 0, 0),
        (None, 300, 0, None),
    ],
)
def test_memory_that_a_limit_leaves_for_blocks(
    limit: int | None, own: int, blocks: int, wanted: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = [("memory", blocks), ("released", 77), ("executing", None)]
    tasks = {
        number: SimpleNamespace(state=state, nbytes=nbytes)
        for number, (state, nbytes) in enumerate(states)
    }
    worker: Any = SimpleNamespace(
        memory_manager=SimpleNamespace(memory_limit=limit, memory_pause_fraction=0.8),
        monitor=SimpleNamespace(get_process_memory=lambda: own),
        state=SimpleNamespace(tasks=tasks),
    )
    monkeypatch.setitem(sys.modules, "numba", SimpleNamespace())
    assert facts.memory_for_blocks(worker) == wanted
    monkeypatch.delitem(sys.modules, "numba")
    later = None if wanted is None else max(0, wanted - facts.RUNTIME_BYTES)
    assert facts.memory_for_blocks(worker) == later
