"""The rows of an explanation: words, verdicts, reasons, costs, measured steps; HTML and drawing."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.ndimage

import dask_dgpu as dgpu
from dask_dgpu.errors import DgpuError
from dask_dgpu.observe.explain import Explanation
from dask_dgpu.observe.explain.operations import Operation
from dask_dgpu.runtime.execute import Span

X = da.ones((12, 12), chunks=3)
TALL = da.ones((12, 2), chunks=(3, 2))


@pytest.fixture
def product() -> Iterator[Explanation]:
    x = da.ones((6, 6), chunks=3)
    with dgpu.enable(local_ranks=2, when="always", on_error="raise"):
        yield dgpu.explain(x @ x)


@pytest.fixture
def enabled() -> Iterator[None]:
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        yield


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (X @ X.T, ["ones", "transpose", "matmul"]),
        (da.exp(X - 64).sum(axis=0), ["ones", "x - 64", "exp", "sum over axis 0"]),
        (X.mean(axis=(0, 1)), ["ones", "mean"]),
        (X.std(axis=1), ["ones", "std over axis 1"]),
        (X.argmax(axis=0), ["ones", "argmax over axis 0"]),
        (X.cumsum(axis=0), ["ones", "cumsum"]),
        (da.einsum("ij,jk->ik", X, X), ["ones", "einsum"]),
        (da.tensordot(X, X, axes=1), ["ones", "tensordot"]),
        (X[3:6] * X[6:9], ["ones", "x[...]", "x[...]", "x * y"]),
        (X * X, ["ones", "x * x"]),
        (X.rechunk((12, 2)), ["ones", "rechunk"]),
        (X.map_blocks(np.sin), ["ones", "sin"]),
        (X.persist(scheduler="sync") + 1, ["x + 1"]),
        (da.linalg.qr(TALL)[1], ["ones", "qr"]),
        (da.linalg.svd(TALL)[1], ["ones", "svd"]),
        (da.linalg.lu(X)[2], ["ones", "lu"]),
        (da.gradient(X)[0], ["ones", "overlap", "gradient", "trim overlap"]),
        (da.bincount(da.arange(9, chunks=3)), ["arange", "bincount"]),
        (da.histogram(X, bins=3, range=(0, 2))[0], ["ones", "histogram", "sum over axis 0"]),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
@pytest.mark.usefixtures("enabled")
def test_words_are_those_of_users(array: da.Array, words: list[str]) -> None:
    found = dgpu.explain(array).operations
    assert [each.operation for each in found] == words
    assert all(each.why for each in found)
    assert {each.by for each in found} <= {"gang", "fused", "Dask"}


@pytest.mark.parametrize(
    ("make", "by", "why"),
    [
        (lambda: X + 1, "Dask", "no blocks meet"),
        (lambda: da.einsum("ij,ij->ij", X, X), "Dask", "no index of both operands is summed"),
        (lambda: da.matmul(X.astype(object), X), "Dask", "dtype object has no kernel"),
        (lambda: X[X[:, 0] > 0] @ X, "Dask", "chunk sizes are unknown"),
        (lambda: X.sum(), "gang", "each rank on its blocks"),
    ],
)
@pytest.mark.usefixtures("enabled")
def test_each_verdict_has_a_reason(make: Callable[[], da.Array], by: str, why: str) -> None:
    y = make().persist(scheduler="sync") if by == "gang" else make()
    last = dgpu.explain(y if by == "Dask" else X.persist(scheduler="sync").sum()).operations[-1]
    assert (last.by, last.why) == (by, why)


def test_kernels_without_a_gang() -> None:
    x = da.ones((12, 12), chunks=(3, 12))
    with dgpu.enable(local_ranks=3):
        found = dgpu.explain(da.exp(x - x.max(axis=1, keepdims=True)))
    assert [(each.operation, each.by) for each in found.operations] == [
        ("ones", "Dask"),
        ("max over axis 1", "fused"),
        ("x - y", "fused"),
        ("exp", "fused"),
    ]
    assert found.operations[-1].why == "one kernel for 3 operations"


def median_filter(block: np.ndarray) -> np.ndarray:
    return scipy.ndimage.median_filter(block, size=3)


@pytest.mark.parametrize("chunks", [3, 12])
@pytest.mark.usefixtures("enabled")
def test_a_function_of_a_user_is_no_part_of_a_kernel(chunks: int) -> None:
    x = X.rechunk(chunks).persist(scheduler="sync")
    y = da.exp(-(x + 1).map_overlap(median_filter, depth=1, boundary="reflect"))
    found = {each.operation: each.why for each in dgpu.explain(y).operations}
    assert found["median_filter"] == "a call for each block, then exp"
    assert found["-x"].startswith("in one ")
    assert not [why for why in found.values() if why.endswith("kernel with median_filter")]


class Unhashable:
    """A function of a user."""

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, block: Any) -> Any:
        return block + 1


@pytest.mark.usefixtures("enabled")
def test_a_function_without_a_hash() -> None:
    x = da.from_array(np.arange(12.0), chunks=4)
    z = x.map_blocks(Unhashable(), dtype="float64").sum()
    assert [each.operation for each in dgpu.explain(z).operations][-1] == "sum"
    assert z.compute(scheduler="sync") == 78


@pytest.mark.usefixtures("enabled")
def test_several_arrays_are_one_graph() -> None:
    x = X @ X.T
    together, alone = dgpu.explain(x, x.sum(axis=0)), dgpu.explain(x)
    assert len(together.operations) == len(alone.operations) + 1
    assert len(together.regions) == 1


@pytest.mark.usefixtures("enabled")
def test_tasks_add_up_to_the_total() -> None:
    found = dgpu.explain(da.exp(X @ X.T - 64).sum())
    assert found.totals is not None
    tasks = sum(each.tasks or 0 for each in found.operations)
    gangs = sum(prediction.tasks for _, prediction in found.regions)
    assert tasks + gangs == found.totals.tasks
    plain = json.loads(found.to_json())
    assert plain["total"]["dask_seconds"] == found.dask_seconds
    assert set(plain["operations"][0]) == set(Operation.__dataclass_fields__)


@pytest.mark.parametrize("exposed", [1.5, 0.0, None])
def test_transfers_of_a_step(product: Explanation, exposed: float | None) -> None:
    last = product.operations[-1]
    step = Span("mul", "compute", 0.0, 2.0, 8, 0.25, exposed, sent_bytes=64)
    made = (*product.operations[:-1], last.with_run([step]))
    found = replace(product, runs=((step,),), operations=made, timed=True)
    assert (made[-1].measured, made[-1].exposed, made[-1].sent_bytes) == (2.0, exposed, 64)
    assert "measured" in str(found)
    assert ("transfers: not measured" in str(found)) is (exposed is None)
    (region,) = found.to_dict()["regions"]
    assert (region["hidden"], region["exposed"]) == ([0.25], [exposed])
    assert found._repr_html_().count("dgpu-bar' title='measured'") == 3  # operation, gang, total


def test_a_recording_has_one_time_and_its_steps_none(product: Explanation) -> None:
    first, last = (
        Span(name, "compute", 0.0, seconds, 8, recorded=(12, 0.5))
        for name, seconds in (("a", 0.5), ("mul", 0.0))
    )
    ones, matmul = (
        each.with_run([step]) for each, step in zip(product.operations, (first, last), strict=True)
    )
    found = replace(product, runs=((first, last),), operations=(ones, matmul), timed=True)
    assert (ones.measured, matmul.measured) == (0.5, None)
    assert all(each.why.endswith("; recorded: 12 steps in 500 ms") for each in (ones, matmul))
    assert "transfers: not measured" not in str(found)


def test_html_is_escaped_and_has_no_scripts(product: Explanation) -> None:
    name = Operation("a", "<script>x</script>", "Dask", "'quoted' & <b>")
    html = replace(product, operations=(name,), regions=(), room=1e6)._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html


def test_a_drawing_needs_graphviz(product: Explanation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "graphviz", None)
    with pytest.raises(DgpuError, match="expected graphviz to be installed"):
        product.visualize()


def test_a_drawing_has_a_box_for_each_operation(product: Explanation) -> None:
    source = product.visualize().source
    assert all(f'label="{each.operation}\n' in source for each in product.operations)
    assert 'label="gang 1"' in source
    assert source.count(" -> ") == 1
    name = Operation("a", r"<script>\n", "Dask", '"quoted"')
    assert r'label="<script>\\n' in replace(product, operations=(name,)).visualize().source


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_a_drawing_goes_to_a_file(product: Explanation, tmp_path: Path) -> None:
    product.visualize(filename=tmp_path / "program.svg")
    svg = (tmp_path / "program.svg").read_text()
    assert svg.count('class="node"') == len(product.operations)
    assert "matmul" in svg
    assert 'id="clust1"' in svg
    assert [*tmp_path.iterdir()] == [tmp_path / "program.svg"]
    with pytest.raises(ValueError, match="other"):
        product.visualize(filename="program.other")
