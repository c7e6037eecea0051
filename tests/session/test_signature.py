"""The signature of enable names the settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, get_args, get_type_hints

import dask
import pytest
from mypy import api

import dask_dgpu as dgpu
from dask_dgpu.environment.facts import ClusterFacts
from dask_dgpu.environment.settings import Keywords, effective, keywords, schema


def test_settings_are_in_the_signature() -> None:
    client, *settings = signature(dgpu.enable).parameters.values()
    assert client.name == "client"
    names = {name.removeprefix("dgpu.").replace(".", "_").replace("-", "_") for name in effective()}
    assert {each.name for each in settings} == names
    assert {each.kind for each in settings} == {Parameter.KEYWORD_ONLY}
    assert signature(dgpu.enable).parameters["gang_timeout"].default == "300s"


def test_type_checkers_know_the_settings() -> None:
    """Types are those of the schema, and names those of the defaults, and ``comm``."""
    assert dgpu.enable.__annotations__["settings"] == "Unpack[Keywords]"
    types = {name: _flat(each) for name, each in get_type_hints(Keywords).items()}
    assert types.pop("comm") == types["comm_transport"]
    assert types == dict(_types(schema()["properties"]["dgpu"]["properties"]))
    assert [*types] == [each.name for each in keywords()]


def _flat(hint: Any) -> set[Any]:
    """Return the values of literals and the types that a hint allows."""
    return set().union(*map(_flat, get_args(hint))) if get_args(hint) else {hint}


PLAIN = {"boolean": bool, "integer": int, "number": float, "string": str, "null": type(None)}


def _types(properties: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, set[Any]]]:
    for key, rule in properties.items():
        name = prefix + key.replace("-", "_")
        if "properties" in rule:
            yield from _types(rule["properties"], name + "_")
        elif "enum" in rule:
            yield name, set(rule["enum"])
        else:
            kinds = rule["type"]
            yield name, {PLAIN[each] for each in ([kinds] if isinstance(kinds, str) else kinds)}


@pytest.mark.slow
def test_type_checkers_refuse_an_unknown_setting(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import dask_dgpu\ndask_dgpu.enable(wen=1, when=1, local_ranks=2)\n")
    stdout, stderr, _ = api.run([str(script)])
    assert not stderr
    assert 'Unexpected keyword argument "wen" for "enable"' in stdout
    assert 'Argument "when" to "enable" has incompatible type' in stdout
    assert "Found 2 errors" in stdout


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
