"""Every operation has a row in the table of the architecture, and examples in the README."""

from __future__ import annotations

import re
from collections.abc import Iterator

import dask.array as da
import pytest
from dask.array.core import Array

import dask_dgpu as dgpu
from dask_dgpu.environment.facts import ClusterFacts
from dask_dgpu.environment.settings import read
from dask_dgpu.operations import OPERATIONS
from dask_dgpu.optimizer import GraphOptimizer
from graph_opt.dask_graph.parse import parse
from graph_opt.dask_graph.rules import RULES, find, own
from tests.project.test_project import ARCHITECTURE, ROOT
from tests.project.test_readme import EXAMPLES, NAMES, X


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_is_in_the_table_of_the_architecture(name: str) -> None:
    """Its piece and rule, its operation file, its algorithm and kernels, tests and benchmark."""
    (row,) = re.findall(rf"^\| {name} \|.*$", ARCHITECTURE, re.MULTILINE)
    piece, operation, algorithm, kernels, tests, benchmark = row.split("|")[2:8]
    finders = [match.__module__.replace(".", "/") for _, match, _ in RULES if match is not own]
    found = re.findall(r"`(graph_opt/dask_graph/\w+)\.py`", piece)
    assert set(found) <= set(finders)
    assert "graph_opt/pieces/" in piece
    (path,) = re.findall(r"`(dask_dgpu/operations/\w+)\.py`", operation)
    assert path.replace("/", ".") == OPERATIONS[name].plan.__module__
    folder = re.findall(r"algorithms/(\w+)[/.]", algorithm)[0]
    text = (ROOT / f"{path}.py").read_text()
    assert re.search(rf"from dask_dgpu\.algorithms\.{folder}[. ]", text)
    assert "dask_dgpu/kernels/" in kernels
    assert re.search(r"tests/(algorithms|operations)/test_\w+\.py", tests)
    assert "benchmarks/" in benchmark


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        yield


def test_every_operation_has_an_example() -> None:
    used = set()
    for example, who in EXAMPLES:
        array: Array = eval(example, NAMES)
        found = find(parse(array.dask, array.__dask_keys__()))
        used |= {(piece.operation, who) for piece in found.pieces}
    # jacobi computes at once
    assert {(name, "gang") for name in OPERATIONS.keys() - {"jacobi"}} == used


@pytest.mark.parametrize(
    "moved",
    [X.rechunk((8, 2)), da.map_overlap(abs, X, depth=1, boundary=0)],
    ids=["rechunk", "overlap"],
)
def test_numpy_blocks_on_a_cluster_of_gpus(moved: Array) -> None:
    settings = read({"when": "always", "on_error": "raise"})
    optimizer = GraphOptimizer(settings, ClusterFacts(4, "cuda", 80 << 30, transport="nccl"))
    rewriting = optimizer.rewrite(moved.dask, moved.__dask_keys__())
    assert rewriting.pieces == ()
    assert "blocks are on the host" in rewriting.declined[0].reason
