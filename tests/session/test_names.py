"""Arrays whose values depend on a setting have other names: results with one key are the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import yaml

import dask_dgpu as dgpu

A = np.random.default_rng(2).standard_normal((48, 48)).astype("float32")
X = da.from_array(A, chunks=12)

PROGRAMS: dict[str, Callable[[], da.Array]] = {
    "product": lambda: X @ X,
    "dot": lambda: da.dot(X, X),
    "method": lambda: X.dot(X),
    "contraction": lambda: da.tensordot(X, X, axes=((1,), (0,))),
    "option": lambda: dgpu.matmul(X, X, strategy="row"),
    "sum": lambda: X.sum(axis=0),
    "mean": lambda: da.mean(X),
    "transform": lambda: da.fft.fft2(X),
}

OTHER: dict[str, Any] = {
    "comm.plaintext": True,
    "comm.ports": "30000-30100",
    "comm.transport": "dask",
    "cost.measure": False,
    "device": "cpu",
    "fft.output-layout": "input",
    "fuse": False,
    "gang.grace": "3s",
    "gang.kept-programs": 0,
    "gang.kept-recordings": 0,
    "gang.restarts": 1,
    "gang.timeout": "60s",
    "local-ranks": 3,
    "matmul.wire-dtype": "bfloat16",
    "memory.cap": "1 GiB",
    "memory.limit": "1 GiB",
    "memory.safety-margin": 0.5,
    "on-error": "raise",
    "regions": False,
    "sum.method": "reproducible",
    "when": "always",
}


def flat(tree: dict[str, Any], prefix: str = "") -> set[str]:
    found = set()
    for name, value in tree.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name}
    return found


def test_each_setting_has_another_value_here() -> None:
    defaults = Path(dgpu.__file__).with_name("dgpu.yaml").read_text()
    assert OTHER.keys() == flat(yaml.safe_load(defaults)["dgpu"])


EXPECTED = {
    "matmul.wire-dtype": {"product", "dot", "method", "contraction", "option"},
    "sum.method": {"sum", "mean"},
    "fft.output-layout": {"transform"},
}
"""The programs whose names depend on a setting."""


@pytest.mark.parametrize(
    "setting",
    [pytest.param(each, marks=() if each in EXPECTED else pytest.mark.slow) for each in OTHER],
)
def test_a_setting_that_changes_values_changes_names(setting: str) -> None:
    common = {"local_ranks": 4, "when": "always"}
    keyword = setting.replace(".", "_").replace("-", "_")
    found = {}
    for options in (common, common | {keyword: OTHER[setting]}):
        with dgpu.enable(**options):  # type: ignore[arg-type, unused-ignore]
            made = {name: make() for name, make in PROGRAMS.items()}
            values = {name: z.compute(scheduler="sync") for name, z in made.items()}
        for name, z in made.items():
            found.setdefault(name, []).append((z.name, values[name]))
    for (one, value), (other, changed) in found.values():
        if one == other:
            np.testing.assert_allclose(changed, value, rtol=1e-4, atol=1e-4)
    names = {name for name, ((one, _), (other, _)) in found.items() if one != other}
    assert names == EXPECTED.get(setting, set())


def test_an_array_keeps_the_precision_that_it_was_built_with() -> None:
    exact = X @ X
    with dgpu.enable(local_ranks=4, when="always", matmul_wire_dtype="float16"):
        rough = X @ X
        np.testing.assert_allclose(exact.compute(scheduler="sync"), A @ A, atol=1e-4)
        error = abs(rough.compute(scheduler="sync") - A @ A).max()
    assert error > 1e-3
    with dgpu.enable(local_ranks=4, when="always"):
        np.testing.assert_allclose((X @ X).compute(scheduler="sync"), A @ A, atol=1e-4)
        assert abs(rough.compute(scheduler="sync") - A @ A).max() == error
