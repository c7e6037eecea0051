"""The README says what runs as a gang: its examples are tried."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import dask.array as da
import pytest

import dask_dgpu as dgpu

README = (Path(__file__).parents[2] / "README.md").read_text()
ROW = re.compile(
    r"^\| (?P<operation>[^|]+) \| (?P<examples>`[^|]+`) \| (?P<who>gang|Dask) \|$", re.M
)
ROWS = [
    (m["operation"], re.findall(r"`([^`]+)`", m["examples"]), m["who"])
    for m in ROW.finditer(README)
]
EXAMPLES = [(example, who) for _, examples, who in ROWS for example in examples]

X, T = (da.ones((8, 8), chunks=each).persist(scheduler="sync") for each in (4, (4, 8)))
NAMES = {
    "da": da,
    "dgpu": dgpu,
    "x": X,
    "y": X + 1,
    "z": da.ones((4, 8, 8), chunks=4),
    "t": T,
    "images": da.ones((4, 3, 8, 8), chunks=(1, 3, 4, 8)),
    "kernels": da.ones((2, 3, 3, 3)),
}


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        yield


@pytest.mark.parametrize(("example", "who"), EXAMPLES, ids=[example for example, _ in EXAMPLES])
def test_example(example: str, who: str) -> None:
    explanation = dgpu.explain(eval(example, NAMES))
    assert bool(explanation.regions) == (who == "gang"), str(explanation)


def test_no_bullet_names_an_operation_that_the_table_does_not() -> None:
    """What is said beside the table cannot contradict it unnoticed."""
    (section,) = re.findall(r"^Not good for:\n(.*?)^What runs", README, re.M | re.S)
    assert not re.search(r"\bda\.|@", section)
