"""The signature of enable names the settings."""

from __future__ import annotations

from inspect import Parameter, signature

import pytest

import dask_dgpu as dgpu
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
