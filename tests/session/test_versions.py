"""Versions, devices, transports and settings, without GPUs and with ones that are not there."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import dask
import pytest

import dask_dgpu as dgpu
from dask_dgpu.environment import gpus, transports
from dask_dgpu.environment.settings import defaults
from dask_dgpu.observe import versions
from dask_dgpu.runtime import installed

SECTIONS = ("packages", "devices", "transports", "settings")


class NVMLError(Exception):
    pass


def nvml(models: dict[str, str | bytes], driver: str | bytes = "580.65.06") -> Any:
    """Return bindings of NVML for these GPUs, by number; one without a model has no memory."""

    def find(number: int) -> str:
        return str(number)

    def name(handle: str) -> str | bytes:
        if not models[handle]:
            raise NVMLError
        return models[handle]

    def memory(handle: str) -> Any:
        name(handle)
        return SimpleNamespace(free=60 << 30, total=80 << 30)

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlDeviceGetCount=lambda: len(models),
        nvmlDeviceGetHandleByIndex=find,
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetName=name,
        nvmlSystemGetCudaDriverVersion=lambda: 13020,
        nvmlSystemGetDriverVersion=lambda: driver,
    )


@pytest.fixture(autouse=True)
def no_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def pretend(monkeypatch: pytest.MonkeyPatch, bindings: Any) -> None:
    @contextmanager
    def opened() -> Iterator[Any]:
        if isinstance(bindings, Exception):
            raise bindings
        yield bindings

    monkeypatch.setattr(gpus, "nvml_session", opened)


def printed() -> str:
    file = io.StringIO()
    dgpu.show_versions(file)
    return file.getvalue()


def test_it_prints_all_sections(capsys: pytest.CaptureFixture[str]) -> None:
    assert dgpu.show_versions() is None
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"dask_dgpu {version('dask-dgpu')} on Linux ")
    assert [line for line in lines[1:] if line and not line.startswith("  ")] == list(SECTIONS)


@pytest.mark.slow
def test_command_prints_the_same_and_loads_no_library_of_devices() -> None:
    code = (
        "import runpy, sys; runpy.run_module('dask_dgpu', run_name='__main__')\n"
        "print([name for name in ('torch', 'cupy', 'cuda', 'ucxx', 'rmm') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    *lines, loaded = done.stdout.splitlines()
    assert [line for line in lines if line in SECTIONS] == list(SECTIONS)
    assert loaded == "[]"


def test_packages() -> None:
    found = versions.packages()
    assert found["dask"] == version("dask")
    assert found["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert found.keys() - {"python"} == {*versions.PACKAGES}


def test_missing_and_renamed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    present = {"cupy-cuda12x": "14.2.0", "cupy-cuda13x": "14.1.0", "rmm": "26.10.0"}

    def version(name: str) -> str:
        if name not in present:
            raise installed.PackageNotFoundError
        return present[name]

    monkeypatch.setattr(installed, "version", version)
    found = versions.packages()
    assert found["cupy"] == "14.2.0 (cupy-cuda12x) and 14.1.0 (cupy-cuda13x)"
    assert found["rmm"] == "26.10.0"
    assert found["torch"] == found["dask-cuda"] == "not installed"


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, NVMLError("library not found"))
    assert versions.devices()["GPU"] == "none (NVMLError: library not found)"


def test_no_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, ModuleNotFoundError("No module named 'pynvml'"))
    assert "pip install nvidia-ml-py" in versions.devices()["GPU"]


def test_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, nvml({"0": "NVIDIA H200", "1": b"NVIDIA H100", "2": ""}))
    found = versions.devices()
    assert found["driver"] == "580.65.06, for CUDA up to 13.2"
    assert found["GPU 0"] == "NVIDIA H200, 60.00 GiB of 80.00 GiB free"
    assert found["GPU 1"].startswith("NVIDIA H100, ")
    assert found["GPU 2"] == "model unknown, memory unknown"


def test_hidden_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, nvml({"0": "NVIDIA H200"}, b"550.1"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = versions.devices()
    assert found["GPU"] == "none (CUDA_VISIBLE_DEVICES is '')"
    assert found["driver"].startswith("550.1, ")


@pytest.mark.parametrize("there", [True, False])
def test_transports(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "find_spec", lambda name: there or None)
    for module in (transports, versions):
        monkeypatch.setattr(module, "torch_versions", lambda: {"cuda": "13.0"} if there else None)
    found = versions.transports()
    assert found["dask"] == found["tcp"] == "available"
    if there:
        assert found["nccl"] == "available, torch with CUDA 13.0"
        assert found["ucx"] == "available"
    else:
        assert found["nccl"] == "needs torch with CUDA"
        assert found["ucx"] == "needs ucxx (pip install 'dask-dgpu[ucx]')"


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "torch_versions", lambda: None)
    assert versions.transports()["tcp"] == "available"


def test_settings_and_their_defaults() -> None:
    found = versions.settings()
    assert found["enabled"] == "no"
    assert found["dgpu.when"] == defaults()["dgpu"]["when"]
    with dask.config.set({"dgpu.when": "always", "array.backend": "numpy"}):
        assert versions.settings()["dgpu.when"] == "always (not the default)"


def test_enabled_without_a_cluster() -> None:
    with dgpu.enable(local_ranks=2):
        assert "enabled" in printed()
        assert versions.settings()["enabled"] == "on this process, device cpu, transport tcp"


def test_settings_that_are_not_allowed_are_shown_with_the_error() -> None:
    with dask.config.set({"dgpu.gang.time": 3}):
        found = versions.settings()
    assert found["dgpu.gang.time"] == "3 (not the default)"
    assert "unknown setting under dgpu.gang: 'time'" in found["error"]


@pytest.mark.slow
def test_settings_of_the_environment_are_shown() -> None:
    environment = os.environ | {"DASK_DGPU__WHEN": "always"}
    command = [sys.executable, "-m", "dask_dgpu"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert "always (not the default)" in done.stdout
