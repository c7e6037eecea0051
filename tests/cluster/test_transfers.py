"""Hidden and exposed times of transfers, from the ranks to the explanation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.utils import format_bytes
from distributed import wait

import dask_dgpu as dgpu
from tests.cluster.observe import has_both_times, host
from tests.support.explained import said

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

A = np.random.default_rng(17).random((48, 48))


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x @ x, id="product"),
        pytest.param(dgpu.fft.fft2, id="fft2"),
        pytest.param(lambda x: dgpu.stencil(x, dgpu.LAPLACIAN_5PT, iterations=9), id="stencil"),
        pytest.param(lambda x: x.rechunk((48, 8)), id="rechunk"),
    ],
)
def test_each_step_has_both_times(
    client: Any, on_device: Any, function: Callable[[da.Array], da.Array]
) -> None:
    y = function(on_device(A, (12, 48)))
    host(client.compute(y).result(timeout=100))
    found = dgpu.explain(y, measured=True)
    assert has_both_times(found)
    assert " exposed " in str(found)
    assert ">exposed<" in found._repr_html_()


def test_what_a_product_in_half_precision_has_sent(client: Any, on_device: Any) -> None:
    x = on_device(A, (12, 48))
    y = dgpu.matmul(x, x, strategy="row", wire_dtype="float16")
    value = host(client.compute(y).result(timeout=100))
    np.testing.assert_allclose(value, A @ A, rtol=2**-9)
    found = dgpu.explain(y, measured=True)
    (region,) = found.to_dict()["regions"]
    (sent,) = (each for each in region["sent"] if each is not None)
    # all other ranks need each of the 4 block rows of the right operand
    others = len(client.scheduler_info(n_workers=-1)["workers"]) - 1
    nbytes, exact = others * (48 * 48 + 48 * 4) * 2, others * 48 * 48 * 8
    assert (sent["nbytes"], sent["exact_bytes"]) == (nbytes, exact)
    assert sent["lost"] == sent["skipped"] == sent["empty"] == 0
    assert f"; {format_bytes(nbytes)} sent for {format_bytes(exact)}:" in said(found)


def test_what_a_product_without_zeros_has_sent(client: Any, on_device: Any) -> None:
    sparse = np.where(np.arange(48)[:, None] // 12 == np.arange(48) // 12, A, 0)
    x = on_device(sparse, (12, 12))
    y = dgpu.matmul(x, x, strategy="row", sparse_threshold=0.5)
    value = host(client.compute(y).result(timeout=100))
    np.testing.assert_allclose(value, sparse @ sparse, rtol=1e-12)
    found = dgpu.explain(y, measured=True)
    (region,) = found.to_dict()["regions"]
    (sent,) = (each for each in region["sent"] if each is not None)
    assert sent["nbytes"] < 0.4 * sent["exact_bytes"]
    assert min(sent["empty"], sent["skipped"]) > 0 == sent["lost"]
    assert f"{sent['empty']} empty parts not sent, {sent['skipped']} products with zeros" in said(
        found
    )


def test_measured_finds_parts_of_a_computation_and_persisted_arrays(
    client: Any, on_device: Any
) -> None:
    x = on_device(A, (12, 48))
    y = x @ x
    z = dgpu.fft.fft2(y)
    dask.compute(y, z)
    for found in (dgpu.explain(y, z, measured=True), dgpu.explain(y, measured=True)):
        measured = {each.operation for each in found.operations if each.measured is not None}
        assert "matmul" in measured, str(found)
    made = y.persist()
    wait(made)
    found = dgpu.explain(made, measured=True)
    assert found.operations[-1].operation == "matmul"
    assert found.operations[-1].measured > 0
    assert found.operations[-1].sent_bytes > 0
    assert "computed already" in str(found)
    assert "plain Dask" not in str(found)
    assert "rates" not in str(found)
