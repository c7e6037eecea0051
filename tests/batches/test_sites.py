"""This process as the site of calls: its memory and threads, kept operands, disks and devices."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import psutil
import pytest

import dask_dgpu as dgpu
from dask_dgpu.batches import operations, sinks, sites
from dask_dgpu.batches.executor import Shared
from dask_dgpu.batches.planning import advice
from dask_dgpu.batches.sinks import check_no_overlap
from dask_dgpu.batches.sites import opened
from tests.batches.test_passes import LIMIT, PLANE, reference
from tests.batches.test_run import A, close
from tests.batches.test_selected import MASK
from tests.support.memory import bounded


def test_advice_counts_no_memory_of_calls_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = psutil.virtual_memory()._replace(available=1 << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    with dask.config.set({"dgpu.memory.limit": None}), opened(None) as site:
        room = site.room / 2
        before = advice(site, "it", 1 << 31, room)
        memory = memory._replace(available=1 << 20)  # the other call has the rest
        assert advice(site, "it", 1 << 31, room) == before


def test_kept_operands_stay_within_a_limit() -> None:
    shared = Shared([1, 1, 2, 2, 3], limit=10)
    loads = []

    def get(identity: int, nbytes: int) -> None:
        def load() -> Any:
            loads.append(identity)
            return np.empty(nbytes, "u1")

        shared.get((identity,), nbytes, load)

    for identity, nbytes in ((1, 6), (1, 6), (2, 6), (2, 6), (1, 6), (3, 1), (3, 1), (2, 4)):
        get(identity, nbytes)
    get(2, 4)
    assert loads == [1, 2, 2, 3, 3, 2]
    shared.clear()
    get(2, 6)
    assert loads[-2:] == [2, 2]


def test_many_calls_are_compared_quickly() -> None:
    x, outs = np.ones((2000, 3)), np.empty((2000, 3))
    written = {f"out[{at}]": each for at, each in enumerate(outs)}
    read = {f"calls[{at}][0]": each for at, each in enumerate(x)}
    check_no_overlap(written, read)
    with pytest.raises(ValueError, match=r"out\[1999\] not to share memory with calls\[7\]\[1\]"):
        check_no_overlap(written, read | {"calls[7][1]": outs[1999, 2:]})


@pytest.mark.parametrize("name", ["irfft2", "idstn"])
def test_results_between_passes_may_go_to_disk(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {} if name == "irfft2" else {"s": (40, 20)}
    monkeypatch.setattr(sinks, "SHARE", 0)
    with bounded(LIMIT), dask.config.set({"temporary-directory": str(tmp_path)}):
        assert dgpu.plan(name, PLANE, **options).temporary_bytes > 0
        close(dgpu.run(name, PLANE, **options), reference(name, PLANE, options))
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "SHARE", 0)
    with (
        bounded(None),
        dask.config.set({"temporary-directory": str(tmp_path)}),
        pytest.raises(dgpu.errors.DgpuError, match=r"expected 8192.00 PiB .* got .* of free space"),
    ):
        sinks.temporary((1 << 60,), np.dtype("f8"))


@pytest.mark.parametrize("op", [np.exp, lambda x: x + 1, lambda x: x[x > 0.5]])
@pytest.mark.parametrize("limit", [None, 40_000])
def test_threads_are_those_of_the_plan(
    op: Any, limit: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sites, "CPU_COUNT", 1)
    threads = set()

    def seen(block: Any) -> Any:
        threads.add(threading.get_ident())
        time.sleep(0.001)  # others may begin
        return block

    x = da.from_array(A, chunks=6).map_blocks(seen, meta=np.empty((0, 0)))
    with bounded(limit):
        dgpu.run_many(op, [(x,)])
    assert len(threads) == 1


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUFFT_ALLOC_FAILED")], ids=repr)
def test_a_batch_that_computes_may_run_out_of_memory(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    failures = iter([0, 1, 0])

    def exhausted(block: Any) -> Any:
        if block.size and next(failures, 0):
            raise type(error)(*error.args)
        return np.sqrt(block)

    from dask_dgpu.batches.operations import Operation
    from dask_dgpu.batches.rules import elementwise

    operation = Operation("roots", lambda x: x.map_blocks(exhausted, dtype=float), elementwise)
    monkeypatch.setattr("dask_dgpu.batches.run.resolve", lambda op: operation)
    with bounded(20_000):
        assert dgpu.plan("roots", A).batches > 2
        close(dgpu.run("roots", A), np.sqrt(A))


class Device(np.lib.mixins.NDArrayOperatorsMixin):
    """An array whose ufuncs know only the keywords of CuPy's."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        assert method == "__call__"
        assert not options.keys() - {"out", "dtype", "casting"}
        return ufunc(*(getattr(each, "values", each) for each in inputs), **options)


@pytest.mark.parametrize("options", [{}, {"dtype": "f4"}, {"casting": "unsafe"}])
def test_blocks_on_devices(options: dict[str, Any]) -> None:
    block = partial(operations._of_selected, np.add, **options)
    for mask in (MASK, MASK[:, :1], False):
        found = block(Device(A[:1]), 2, mask)
        chosen = np.broadcast_to(mask, found.shape)
        expected = np.add(A[:1], 2, dtype=options.get("dtype"))
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found[chosen], np.broadcast_to(expected, found.shape)[chosen])
