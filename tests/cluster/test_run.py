"""Host arrays in batches through the workers of a cluster."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask.utils import parse_bytes
from distributed import Client, wait

import dask_dgpu as dgpu
from tests.batches.test_arguments import EMPTY, FUNCTIONS, check_without_elements
from tests.cluster.conftest import SETTINGS
from tests.cluster.faults import allow_small_blocks
from tests.cluster.observe import eventually
from tests.support.reference.conv2d import conv2d_reference

pytestmark = pytest.mark.cluster

RNG = np.random.default_rng(0)
A, B = RNG.random((300, 200)), RNG.random((200, 100))
STACK = RNG.random((6, 40, 50))
IMAGE, KERNELS = RNG.random((1, 2, 150, 120)), RNG.random((3, 2, 5, 5))


def names(client: Client) -> set[Any]:
    """Return the keys of all tasks of the cluster."""
    return set(client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks)))


@pytest.fixture
def earlier(client: Client) -> set[Any]:
    """The keys of tasks that others have left on the cluster."""
    return names(client)


def no_operands(client: Client, earlier: set[Any]) -> bool:
    """Whether nothing of a call is left on the cluster."""
    gc.collect()  # frames of caught errors
    return names(client) <= earlier


def test_products_in_batches(client: Client, earlier: set[Any]) -> None:
    with dgpu.enable(client, **SETTINGS, memory_limit="250 kiB", memory_safety_margin=0):
        plan = dgpu.plan("matmul", A, B)
        assert plan.batches > 1
        assert plan.devices == len(client.scheduler_info()["workers"])
        assert plan.rank_bytes > 0
        out = np.empty((300, 100))
        dgpu.run("matmul", A, B, out=out)
    np.testing.assert_allclose(out, A @ B, rtol=1e-12)
    eventually(lambda: no_operands(client, earlier))


def test_other_elements_stay(client: Client) -> None:
    mask, out, expected = A > 0.5, np.full(A.shape, -7.0), np.full(A.shape, -7.0)
    np.exp(A, out=expected, where=mask)
    with dgpu.enable(client, **SETTINGS, memory_limit="250 kiB", memory_safety_margin=0):
        assert dgpu.plan("exp", A, where=mask).batches > 1
        dgpu.run("exp", A, where=mask, out=out)
    np.testing.assert_allclose(out, expected, rtol=1e-14)


def test_a_transform_in_passes(client: Client, earlier: set[Any]) -> None:
    with dgpu.enable(client, **SETTINGS, memory_limit="250 kiB", memory_safety_margin=0):
        plan = dgpu.plan("rfft2", A)
        assert (plan.passes, plan.temporary_bytes) == (2, 0)
        out = np.empty((300, 101), complex)
        dgpu.run("rfft2", A, out=out)
    np.testing.assert_allclose(out, np.fft.rfft2(A), rtol=1e-11, atol=1e-9)
    eventually(lambda: no_operands(client, earlier))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "args", "options", "expected"),
    [
        ("fft2", (STACK,), {}, np.fft.fft2(STACK)),
        ("fft", (STACK[0],), {"axis": 0}, np.fft.fft(STACK[0], axis=0)),
        ("sum", (STACK,), {"axis": (0, 2)}, STACK.sum((0, 2))),
        ("add", (STACK, STACK[0]), {}, STACK + STACK[0]),
        (
            "conv2d",
            (IMAGE, KERNELS),
            {"stride": 2, "padding": 3},
            conv2d_reference(IMAGE, KERNELS, None, stride=2, padding=3),
        ),
        (lambda x: x @ x.T - x.mean(), (A,), {}, A @ A.T - A.mean()),
    ],
)
def test_operations(
    client: Client, earlier: set[Any], op: Any, args: Any, options: Any, expected: Any
) -> None:
    for limit in ("1 GiB", "300 kiB"):
        with dgpu.enable(client, **SETTINGS, memory_limit=limit, memory_safety_margin=0):
            found = dgpu.run(op, *args, **options)
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)
    eventually(lambda: no_operands(client, earlier))


@pytest.mark.slow
def test_many_calls(client: Client, earlier: set[Any]) -> None:
    calls = [(A, B), (A, B), (A, A), (2 * A, B)]
    with dgpu.enable(client, **SETTINGS, memory_limit="1 MiB"):
        found = dict(dgpu.run_many("matmul", calls, as_completed=True))
    assert isinstance(found.pop(2), ValueError)
    for at, scale in ((0, 1), (1, 1), (3, 2)):
        np.testing.assert_allclose(found[at], scale * A @ B, rtol=1e-12)
    eventually(lambda: no_operands(client, earlier))


@pytest.mark.slow
def test_a_failing_function_leaves_nothing(client: Client, earlier: set[Any]) -> None:
    def fail(block: Any) -> Any:
        if block.size:
            raise OSError("unreadable")
        return block

    with pytest.raises(OSError, match="unreadable"):
        dgpu.run(lambda x: x.map_blocks(fail, dtype=float), A)
    eventually(lambda: no_operands(client, earlier))


@pytest.mark.slow
def test_a_function_that_runs_out_of_memory(
    client: Client, earlier: set[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes once more, in smaller blocks."""
    allow_small_blocks(16 << 10, monkeypatch)
    flag = tmp_path / "failed"

    def root(block: Any) -> Any:
        if block.size and not flag.exists():
            flag.touch()
            raise MemoryError
        return np.sqrt(block)

    def fail(block: Any) -> Any:
        if block.size:
            raise MemoryError
        return block

    found = dgpu.run(lambda x: x.map_blocks(root, dtype=float), A)
    np.testing.assert_array_equal(found, np.sqrt(A))
    with pytest.raises(dgpu.errors.DgpuError, match="with as much in smaller blocks"):
        dgpu.run(lambda x: x.map_blocks(fail, dtype=float), A)
    eventually(lambda: no_operands(client, earlier))


@pytest.mark.slow
@pytest.mark.parametrize("shape", EMPTY)
def test_functions_of_arrays_without_elements(
    client: Client, earlier: set[Any], shape: tuple[int, ...]
) -> None:
    for name in FUNCTIONS:
        check_without_elements(name, shape)
    eventually(lambda: no_operands(client, earlier))


@pytest.mark.parametrize("setting", ["memory_limit", "memory_cap"])
def test_advice_is_enough_beside_other_results(client: Client, setting: str) -> None:
    """What they hold is rounded to a share of the new setting, not of the old one."""
    shape = (4, 400_000)
    others = da.random.random((300, 100), chunks=50).persist()
    wait(others)
    with dgpu.enable(client, **SETTINGS, **{setting: "3 MiB"}):
        plan = dgpu.plan("fft", shape)
    assert not plan.feasible
    ((name, advised),) = re.findall(r"(\w+) of at least ([\d.]+ \w+)", plan.advice)
    assert name == setting
    with dgpu.enable(client, **SETTINGS, **{setting: advised}):
        assert dgpu.plan("fft", shape).feasible
    with dgpu.enable(client, **SETTINGS, **{setting: int(parse_bytes(advised) * 0.98)}):
        assert not dgpu.plan("fft", shape).feasible
