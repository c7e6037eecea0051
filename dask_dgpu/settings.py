"""The settings under ``dgpu.*``: defaults, checks, and a frozen copy that travels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal, cast

import dask
import yaml
from dask.utils import parse_bytes, parse_timedelta
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from dask_dgpu.comm.bootstrap import Transport
from dask_dgpu.runtime.program import Limits


@dataclass(frozen=True)
class Settings:
    """What the optimizer and the gangs go by.

    See ``dgpu.yaml`` beside this file for what each means.
    """

    device: Literal["auto", "cpu", "cuda"]
    comm: Literal["auto"] | Transport
    when: Literal["cheaper", "always"]
    on_error: Literal["fallback", "raise"]
    regions: bool
    local_ranks: int
    sum_method: Literal["dask", "compensated", "reproducible"]
    limits: Limits
    memory_limit: int | None
    safety_margin: float


def defaults() -> dict[str, Any]:
    """Return the defaults, as ``dgpu.yaml`` gives them."""
    text = files("dask_dgpu").joinpath("dgpu.yaml").read_text()
    return cast(dict[str, Any], yaml.safe_load(text))


def schema() -> dict[str, Any]:
    """Return the JSON schema of the settings."""
    text = files("dask_dgpu").joinpath("dgpu-schema.yaml").read_text()
    return cast(dict[str, Any], yaml.safe_load(text))


def read(overrides: Mapping[str, Any] | None = None) -> Settings:
    """Read the settings from Dask's configuration.

    Parameters
    ----------
    overrides : mapping of str to value, optional
        Names as in ``dgpu.*``, with underscores for hyphens and dots:
        ``gang_timeout="30s"``, ``local_ranks=3``.

    Raises
    ------
    ValueError
        When a name is unknown or a value is not allowed.
    """
    values = _values()
    for name, value in (overrides or {}).items():
        matching = [known for known in values if _plain(known) == name]
        if not matching:
            known_names = ", ".join(sorted(map(_plain, values)))
            raise ValueError(f"setting is {name!r}, it must be one of {known_names}")
        values[matching[0]] = value
    _check(values)
    limited = values["memory.limit"] is not None
    return Settings(
        device=values["device"],
        comm=values["comm"],
        when=values["when"],
        on_error=values["on-error"],
        regions=values["regions"],
        local_ranks=values["local-ranks"],
        sum_method=values["sum.method"],
        limits=Limits(
            timeout=_parsed(values, "gang.timeout", parse_timedelta),
            grace=_parsed(values, "gang.grace", parse_timedelta),
            restarts=values["gang.restarts"],
        ),
        memory_limit=int(_parsed(values, "memory.limit", parse_bytes)) if limited else None,
        safety_margin=float(values["memory.safety-margin"]),
    )


def fft_output_layout() -> Literal["any", "input"]:
    """Return ``dgpu.fft.output-layout`` as it is now: it is read at each transform.

    Raises
    ------
    ValueError
        When a value under ``dgpu.*`` is not allowed.
    """
    values = _values()
    _check(values)
    return cast(Literal["any", "input"], values["fft.output-layout"])


def _values() -> dict[str, Any]:
    """Return what is configured, and the defaults for what is not."""
    configured = _flatten(dask.config.get("dgpu", {}) or {})
    return {**_flatten(defaults()["dgpu"]), **configured}


def _parsed(values: Mapping[str, Any], name: str, parse: Callable[[Any], Any]) -> float:
    """Read a quantity with a unit."""
    try:
        return float(parse(values[name]))
    except (KeyError, ValueError):
        form = "bytes, as in '4 GiB'" if parse is parse_bytes else "a time, as in '30s'"
        raise ValueError(f"setting dgpu.{name} is {values[name]!r}, it must be {form}") from None


def _plain(name: str) -> str:
    return name.replace(".", "_").replace("-", "_")


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        path = prefix + name.replace("_", "-")
        flat.update(_flatten(value, path + ".") if isinstance(value, Mapping) else {path: value})
    return flat


def _check(values: Mapping[str, Any]) -> None:
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *sections, last = name.split(".")
        section = tree
        for part in sections:
            section = section.setdefault(part, {})
        section[last] = value
    problem = best_match(Draft202012Validator(schema()["properties"]["dgpu"]).iter_errors(tree))
    if problem is not None:
        where = ".".join(["dgpu", *map(str, problem.absolute_path)])
        raise ValueError(f"setting {where}: {problem.message}")
