"""The settings under ``dgpu.*``: defaults, checks, and a frozen copy for the optimizer."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from inspect import Parameter
from numbers import Real
from typing import Any, Literal, NamedTuple, TypedDict, cast

import dask
import yaml
from dask.utils import parse_bytes, parse_timedelta

from dask_dgpu.algorithms.summa.wire import WireDtype
from dask_dgpu.arguments import expected, shown, unknown
from dask_dgpu.comm.bootstrap import Transport
from dask_dgpu.runtime.program import Limits

SHORT = {"comm": "comm.transport"}
"""Short names of settings."""

LIMITS: Mapping[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("of at least", operator.ge),
    "exclusiveMaximum": ("below", operator.lt),
}
"""Limits of numbers in the schema: their words in messages, and whether a number keeps them."""


def _is_real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


KINDS: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, Mapping),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "number": _is_real,
    "integer": lambda value: _is_real(value) and value == value // 1,
    "null": lambda value: value is None,
}
"""The types in the schema."""


class Number(NamedTuple):
    """A setting that is a number, perhaps a text with a unit: what is allowed, and in words."""

    kind: type[int] | type[float]
    parse: Callable[[Any], Any]
    text: str
    least: float = 0.0
    below: float = math.inf


NUMBERS: Mapping[str, Number] = {
    "gang.timeout": Number(float, parse_timedelta, "a time above 0, as '30s'", math.ulp(0.0)),
    "gang.grace": Number(float, parse_timedelta, "a time of 0 or more, as '30s'"),
    "gang.kept-programs": Number(int, parse_bytes, "bytes of 0 or more, as '64 MiB'"),
    "gang.kept-recordings": Number(int, parse_bytes, "bytes of 0 or more, as '64 MiB'"),
    "memory.limit": Number(int, parse_bytes, "null or bytes above 0, as '4 GiB'", 1),
    "memory.cap": Number(int, parse_bytes, "null or bytes above 0, as '4 GiB'", 1),
    "memory.safety-margin": Number(float, float, "a number of at least 0 below 1", below=1),
}
"""The settings that are numbers with a unit, or not whole."""


@dataclass(frozen=True)
class Settings:
    """Settings of the optimizer and of gangs; ``dask_dgpu/dgpu.yaml`` describes each.

    The ``limits`` are those of gangs, and the ports.
    """

    device: Literal["auto", "cpu", "cuda"]
    comm: Literal["auto"] | Transport
    comm_plaintext: bool
    when: Literal["cheaper", "always"]
    on_error: Literal["fallback", "raise"]
    regions: bool
    fuse: bool
    local_ranks: int
    matmul_wire_dtype: WireDtype
    sum_method: Literal["dask", "compensated", "reproducible"]
    fft_output_layout: Literal["any", "input"]
    limits: Limits
    cost_measure: bool
    memory_limit: int | None
    memory_safety_margin: float
    memory_cap: int | None


class Keywords(TypedDict, total=False):
    """The settings as keywords of :func:`dask_dgpu.enable`, with the types of the schema."""

    device: Literal["auto", "cpu", "cuda"]
    comm: Literal["auto"] | Transport
    comm_transport: Literal["auto"] | Transport
    comm_plaintext: bool
    comm_ports: str | None
    when: Literal["cheaper", "always"]
    on_error: Literal["fallback", "raise"]
    regions: bool
    fuse: bool
    local_ranks: int
    fft_output_layout: Literal["any", "input"]
    cost_measure: bool
    matmul_wire_dtype: WireDtype
    sum_method: Literal["dask", "compensated", "reproducible"]
    gang_timeout: str | float
    gang_grace: str | float
    gang_restarts: int
    gang_kept_programs: str | float
    gang_kept_recordings: str | float
    memory_limit: str | float | None
    memory_safety_margin: float
    memory_cap: str | float | None


@cache
def defaults() -> Mapping[str, Any]:
    """Return the defaults from ``dgpu.yaml``."""
    text = files("dask_dgpu").joinpath("dgpu.yaml").read_text()
    return cast(Mapping[str, Any], yaml.safe_load(text))


@cache
def schema() -> Mapping[str, Any]:
    """Return the JSON schema of the settings."""
    text = files("dask_dgpu").joinpath("dgpu-schema.yaml").read_text()
    return cast(Mapping[str, Any], yaml.safe_load(text))


def read(overrides: Mapping[str, Any] | None = None) -> Settings:
    """Read the settings from Dask's configuration; raise for unknown names and bad values.

    Names of ``overrides`` have underscores for hyphens and dots: ``gang_timeout="30s"``.
    """
    values, overrides = _values(), overrides or {}
    for pair in ((_plain(short), _plain(full)) for short, full in SHORT.items()):
        given = [shown(overrides[name]) for name in pair if name in overrides]
        if len(set(given)) > 1:
            raise ValueError(
                f"expected {' and '.join(pair)} to be equal, got {' and '.join(given)}"
            )
    for name, value in overrides.items():
        matching = [known for known in (*values, *SHORT) if _plain(known) == name]
        if not matching:
            names = {*values, *SHORT} - set(SHORT.values())
            raise ValueError(unknown("setting", name, sorted(map(_plain, names))))
        values[SHORT.get(matching[0], matching[0])] = value
    check(values)
    settings = {_plain(name): _parsed(name, value) for name, value in values.items()}
    of_gangs = [name for name in settings if name.startswith("gang_") or name == "comm_ports"]
    limits = Limits(**{name.partition("_")[2]: settings.pop(name) for name in of_gangs})
    return Settings(comm=settings.pop("comm_transport"), limits=limits, **settings)


def keywords() -> list[Parameter]:
    """Return each setting as a keyword parameter with its default."""
    values = _flatten(defaults()["dgpu"])
    return [
        Parameter(_plain(name), Parameter.KEYWORD_ONLY, default=value)
        for name, value in values.items()
    ]


def effective() -> dict[str, tuple[Any, bool]]:
    """Return each setting that :func:`read` sees, and whether it has its default."""
    initial = _flatten(defaults()["dgpu"])
    return {
        f"dgpu.{name}": (value, name in initial and value == initial[name])
        for name, value in _values().items()
    }


def _values() -> dict[str, Any]:
    """Return the configured values, and the defaults of the others."""
    configured = _flatten(dask.config.get("dgpu", {}) or {})
    configured = {SHORT.get(name, name): value for name, value in configured.items()}
    return {**_flatten(defaults()["dgpu"]), **configured}


def _ports(value: str | None) -> tuple[int, int] | None:
    """Return the first and the last of a range of ports."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", value)
    first, last = map(int, match.groups()) if match else (0, 0)
    if not 0 < first <= last < 2**16:
        expected("setting dgpu.comm.ports", "null or a range of ports, as '30000-30100'", value)
    return first, last


def _parsed(name: str, value: Any) -> Any:
    """Return the value of a setting, a number for a text with a unit; NaN is never allowed."""
    if name == "comm.ports":
        return _ports(value)
    rule = NUMBERS.get(name)
    if rule is None or value is None:
        return int(value) if _is_real(value) else value
    try:
        number = float(value if isinstance(value, Real) else rule.parse(value))
    except (KeyError, ValueError, OverflowError):
        number = math.nan
    if not (rule.least <= number and number < rule.below):
        expected(f"setting dgpu.{name}", rule.text, value)
    return rule.kind(number)


def _plain(name: str) -> str:
    return name.replace(".", "_").replace("-", "_")


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        path = prefix + name.replace("_", "-")
        flat.update(_flatten(value, path + ".") if isinstance(value, Mapping) else {path: value})
    return flat


def check(values: Mapping[str, Any]) -> None:
    """Raise for the first name or value that the schema does not allow."""
    for name, value in values.items():
        rule, where = schema()["properties"]["dgpu"], "dgpu"
        for part in name.split("."):
            known = rule.get("properties")
            if known is None:
                _check_value(where, {part: value}, rule)
            elif part not in known:
                raise ValueError(unknown(f"setting under {where}:", part, sorted(known)))
            rule, where = known[part], f"{where}.{part}"
        _check_value(where, value, rule)


def _check_value(where: str, value: Any, rule: Mapping[str, Any]) -> None:
    """Raise unless the rule of a setting allows a value."""
    setting = f"setting {where}"
    if "enum" in rule:
        if value in rule["enum"]:
            return
        if isinstance(value, str):
            raise ValueError(unknown(f"value of {setting}:", value, rule["enum"]))
        expected(setting, f"one of {', '.join(rule['enum'])}", value)
    kinds = [rule["type"]] if isinstance(rule["type"], str) else rule["type"]
    fits = any(KINDS[kind](value) for kind in kinds)
    what = " or ".join(kinds)
    for limit, (text, keeps) in LIMITS.items():
        if limit in rule:
            what += f" {text} {rule[limit]}"
            fits = fits and keeps(value, rule[limit])
    if not fits:
        expected(setting, what, value)
