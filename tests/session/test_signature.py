"""The signature of enable names the settings."""

from __future__ import annotations

from dataclasses import replace
from inspect import Parameter, signature
from typing import Any

import dask
import pytest

import dask_dgpu as dgpu
from dask_dgpu.environment.facts import ClusterFacts
from dask_dgpu.environment.settings import effective


def test_settings_are_in_the_signature() -> None:
    client, *settings = signature(dgpu.enable).parameters.values()
    assert client.name == "client"
    names = {name.removeprefix("dgpu.").replace(".", "_").replace("-", "_") for name in effective()}
    assert {each.name for each in settings} == names
    assert {each.kind for each in settings} == {Parameter.KEYWORD_ONLY}
    assert signature(dgpu.enable).parameters["gang_timeout"].default == "300s"


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown setting 'gang_timout'"):
        dgpu.enable(gang_timout="3s")


@pytest.mark.parametrize("call", [dgpu.enable, dgpu.start])
def test_two_transports_are_refused(call: Any) -> None:
    message = "expected comm and comm_transport to be equal, got 'dask' and 'tcp'"
    with pytest.raises(ValueError, match=message):
        call(comm="dask", comm_transport="tcp")
    with dgpu.enable(comm="dask", comm_transport="dask") as enabled:
        assert enabled.optimizer.settings.comm == "dask"


def test_what_is_enabled_is_one_short_line() -> None:
    with dgpu.enable() as enabled:
        assert repr(enabled) == str(enabled) == "<Enabled: in this process>"
    four = replace(enabled.optimizer, facts=ClusterFacts(4, "cuda", None, transport="nccl"))
    assert repr(replace(enabled, optimizer=four)) == "<Enabled: 4 workers, cuda, nccl>"


def test_start_names_the_settings_but_the_memory_of_workers() -> None:
    parameters = signature(dgpu.start).parameters
    names = [*signature(dgpu.enable).parameters]
    names.remove("memory_limit")
    assert [*parameters] == ["n_workers", *names[1:], "cluster_kwargs"]
    assert parameters["cluster_kwargs"].kind is Parameter.VAR_KEYWORD


def test_start_refuses_settings_before_it_starts_workers() -> None:
    with pytest.raises(ValueError, match=r"unknown value of setting dgpu\.when: 'sometimes'"):
        dgpu.start(1, when="sometimes", processes=False)
    with pytest.raises(TypeError, match=r"unknown argument 'gang_timout' \(did you mean 'gang_tim"):
        dgpu.start(1, device="cpu", gang_timout="3s", processes=False)


@pytest.mark.parametrize("settings", [{"comm": "dask"}, {"comm_transport": "dask"}])
def test_start_passes_settings_on(settings: dict[str, str]) -> None:
    with dgpu.start(
        1, device="cpu", memory_limit="1 GiB", when="always", processes=False, **settings
    ) as client:
        optimizer = dask.config.get("array_optimize")
        assert optimizer.settings.when == "always"
        assert optimizer.settings.comm == "dask"
        (worker,) = client.scheduler_info(n_workers=-1)["workers"].values()
        assert worker["memory_limit"] == 1 << 30
        assert repr(client).startswith("<Client: ")
