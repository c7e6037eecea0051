"""The devices of workers: a fake NVML, host memory, bars, the live form."""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client, LocalCluster

import dask_dgpu as dgpu
from dask_dgpu.environment import devices

GIB = 1 << 30


class NVMLError(Exception):
    pass


class FakeNvml:
    """Three GPUs; this process uses 10 GiB of the first, and another one 6 GiB."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0
    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_P2P_STATUS_OK = 0

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"Fake H100"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=80 * GIB, free=64 * GIB)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [
            SimpleNamespace(pid=self.pid, usedGpuMemory=10 * GIB),
            SimpleNamespace(pid=1, usedGpuMemory=6 * GIB),
        ]

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=42)

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        raise NVMLError

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, index: int) -> int:
        return 0 if other == 2 else 5


def use(monkeypatch: pytest.MonkeyPatch, nvml: Any) -> None:
    @contextmanager
    def session() -> Any:
        yield nvml

    monkeypatch.setattr(devices, "nvml_session", session)
    monkeypatch.setattr(devices, "visible_gpus", lambda: ("0",))


def test_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakeNvml(os.getpid()))
    with dgpu.enable(memory_safety_margin=0.5):
        status = dgpu.gpu_status()
    (found,) = status.to_dict().values()
    assert (found["total"], found["free"]) == (80 * GIB, 64 * GIB)
    assert (found["used"], found["others"]) == (10 * GIB, 6 * GIB)
    assert found["safe"] == 37 * GIB
    with dgpu.enable(memory_safety_margin=0.5, memory_cap="30 GiB"):
        assert [*dgpu.gpu_status().safe.values()] == [30 * GIB]
    assert (found["utilisation"], found["temperature"], found["peers"]) == (42, None, ("2",))
    assert "Fake H100" in str(status)
    assert "42 %" in str(status)
    assert f" ##xx{'░' * 16} " in str(status)
    assert re.findall(r";width:([\d.]+)%", status._repr_html_()) == ["12.5", "7.5"]
    json.dumps(status.to_dict())


def test_a_container_hides_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakeNvml(-1))
    (device,) = dgpu.gpu_status().devices.values()
    assert (device.used, device.others) == (None, None)
    assert "xxxx" in str(dgpu.gpu_status())


def test_the_host_without_a_client() -> None:
    status = dgpu.gpu_status()
    (device,) = status.devices.values()
    assert (device.kind, device.name) == ("cpu", "host memory")
    assert device.used is not None
    assert 0 < device.used < device.total
    assert repr(status) == str(status)
    assert "NVLink" not in str(status)
    html = status._repr_html_()
    assert html.count("dgpu-bar") == 1
    assert "<script" not in html


@pytest.mark.cluster
def test_workers_have_limits() -> None:
    options: dict[str, Any] = {"processes": False, "dashboard_address": ":0"}
    with (
        LocalCluster(n_workers=2, memory_limit="16 GiB", **options) as cluster,
        Client(cluster) as client,
    ):
        status = dgpu.gpu_status(client)
        assert len(status.devices) == 2
        assert {each.total for each in status.devices.values()} == {16 * GIB}
        assert all(0 < (each or 0) < 16 * GIB for each in status.safe.values())
        assert str(status).count("tcp://") + str(status).count("inproc://") == 2


def test_live_until_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    status = dgpu.gpu_status(live=True, interval=0.5)
    assert slept == [0.5] * 3
    assert list(status.devices) == ["this process"]
    assert "host memory" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "error"), [({"live": 2}, TypeError), ({"interval": 0}, ValueError)]
)
def test_bad_arguments(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=f"expected {next(iter(options))} to be"):
        dgpu.gpu_status(**options)


def test_health_displays_and_is_plain() -> None:
    health = dgpu.Health({"tcp://a": "ok", "tcp://b": "<dead>"})
    assert health.to_dict() == {"ok": False, "workers": dict(health.workers)}
    assert "&lt;dead&gt;" in health._repr_html_()
    assert repr(health) == str(health)


@pytest.mark.gpu
def test_numbers_are_those_of_the_driver() -> None:
    from dask_dgpu.environment.gpus import read_memory, visible_gpus

    (device,) = dgpu.gpu_status().devices.values()
    (memory,) = read_memory(visible_gpus()[:1])
    assert device.total == memory.total
    assert abs(device.free - memory.free) < 64 << 20
