"""Workers of this machine: how their pools are sized, and what is said if some are missing."""

from __future__ import annotations

import logging
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

import dask_dgpu as dgpu
from dask_dgpu.environment import gpus
from dask_dgpu.environment.gpus import GpuMemory, pool_bytes, read_memory, visible_gpus
from dask_dgpu.errors import DgpuError
from dask_dgpu.session import enable, startup
from dask_dgpu.session.guard import require_main_guard
from dask_dgpu.session.startup import cuda_options, explained, missing_text, require_workers

GIB = 1 << 30


class NVMLError(Exception):
    pass


def nvml(*free_gib: float | None) -> SimpleNamespace:
    """Return a driver of GPUs of 80 GiB with so much free, of ``None`` it does not know."""

    def memory(handle: int) -> SimpleNamespace:
        free = free_gib[handle]
        if free is None:
            raise NVMLError
        return SimpleNamespace(free=int(free * GIB), total=80 * GIB)

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(free_gib),
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetHandleByUUID=lambda name: int(name.removeprefix("GPU-")),
        nvmlDeviceGetMemoryInfo=memory,
    )


def use(monkeypatch: pytest.MonkeyPatch, *free_gib: float | None) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(*free_gib))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("argument", "variable", "wanted"),
    [
        (None, None, "0123"),
        (None, "2,0", "20"),
        (None, "", ""),
        (None, "-1", ""),
        ("1, 3", "2", "13"),
        ([3, 1], None, "31"),
        ([], None, ""),
    ],
)
def test_visible_gpus(
    argument: Any, variable: str | None, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, 80, 80, 80, 80)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert visible_gpus(argument) == tuple(wanted)


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert visible_gpus() == ()
    assert gpus.count_gpus() == 0


def test_memory_by_number_and_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, 10, 20, None)
    assert read_memory(["GPU-1", "0", "2"]) == [
        GpuMemory("GPU-1", 20 * GIB, 80 * GIB),
        GpuMemory("0", 10 * GIB, 80 * GIB),
    ]


@pytest.mark.parametrize(
    ("free_gib", "pool_gib"),
    [((80.0, 80.0), 40), ((80.0, 30.0, 79.0), 15), ((2.0,), 1)],
)
def test_pools_fit_into_what_is_free(free_gib: tuple[float, ...], pool_gib: float) -> None:
    memories = [GpuMemory(str(n), int(free * GIB), 80 * GIB) for n, free in enumerate(free_gib)]
    pool = pool_bytes(memories)
    assert pool == pool_gib * GIB
    assert pool_bytes([]) is None


def test_a_gpu_without_room_is_named() -> None:
    memories = [GpuMemory("0", 79 * GIB, 80 * GIB), GpuMemory("1", GIB, 80 * GIB)]
    with pytest.raises(DgpuError) as raised:
        pool_bytes(memories)
    assert str(raised.value) == (
        "expected at least 2.00 GiB of free memory on each GPU, but GPU 1 has 1.00 GiB of "
        "80.00 GiB free; CUDA_VISIBLE_DEVICES selects other GPUs"
    )


def test_options_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, 80, 30)
    assert cuda_options(["0"], {"dashboard_address": ":0"}) == {
        "dashboard_address": ":0",
        "rmm_pool_size": 40 * GIB,
        "rmm_allocator_external_lib_list": "cupy",
    }
    assert cuda_options(["0", "1"], {})["rmm_pool_size"] == 15 * GIB
    assert cuda_options(["0", "1"], {"rmm_async": True}) == {"rmm_async": True}
    use(monkeypatch, None)
    assert cuda_options(["0"], {})["rmm_pool_size"] == startup.DEFAULT_POOL


def test_a_worker_that_does_not_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, 79, 1, 79, 0.5)
    error = "MemoryError: std::bad_alloc: out_of_memory"
    assert missing_text({"3", "1"}, 4, ["0", "1", "2", "3"], [error, error]) == (
        f"2 of 4 workers did not start: on GPU 1, 3 ({error}); GPU 1 has 1.00 GiB of 80.00 GiB "
        "free and GPU 3 has 512.00 MiB of 80.00 GiB free now"
    )
    assert missing_text({"0"}, 2, (), []) == "1 of 2 workers did not start: 0"


def test_errors_of_nannies_are_collected(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("distributed.nanny")
    with caplog.at_level(logging.ERROR, logger.name), explained(()) as errors:
        try:
            raise MemoryError("no pool")
        except MemoryError:
            logger.exception("Failed to start process")
        logger.error("without an exception")
    assert errors == ["MemoryError: no pool"]
    with pytest.raises(OSError, match="no port"), explained(()):
        raise OSError("no port")


def test_a_cluster_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, 79, 1)
    message = r"a worker on the GPUs could not start: MemoryError: no pool; GPU 0 has .* GPU 1 has"
    with pytest.raises(DgpuError, match=message), explained(["0", "1"]):
        raise MemoryError("no pool")
    with pytest.raises(DgpuError, match=r"^as it is$"), explained(["0"]):
        raise DgpuError("as it is")


@pytest.mark.slow
def test_fewer_workers_than_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    with (
        LocalCluster(n_workers=2, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        require_workers(client, cluster.plan, (), [])
        with caplog.at_level(logging.WARNING, logger="dask_dgpu"), dgpu.enable(client):
            assert not [each for each in caplog.records if each.name == enable.__name__]
        cluster.worker_spec["gone"] = cluster.worker_spec[0]
        with pytest.raises(DgpuError, match="1 of 3 workers did not start: gone"):
            require_workers(client, cluster.plan, (), [], patience=0)
        with caplog.at_level(logging.WARNING, logger="dask_dgpu"), dgpu.enable(client):
            pass
        (line,) = (each.getMessage() for each in caplog.records if each.name == enable.__name__)
        assert line.startswith("2 of 3 requested workers are available;")
        del cluster.worker_spec["gone"]


@pytest.mark.parametrize(
    ("line", "guarded"),
    [
        ('if __name__ == "__main__": main()', True),
        ('if __name__ == "__main__" and main(): pass', True),
        ('if (\n    __name__ == "__main__"\n    and main()\n): pass', True),
        ('__name__ == "__main__" and main()', True),
        ('main() if __name__ == "__main__" else None', True),
        ('if __name__ == "__main__":\n    with open(__file__):\n        main()', True),
        ("main()", False),
        ("if main(): pass", False),
        ('if __name__ == "__main__": pass\nmain()', False),
    ],
)
def test_a_guard_has_many_forms(line: str, guarded: bool, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    source = f"def main(): require_main_guard('a call')\n{line}\n"
    script.write_text(source)
    names = {"require_main_guard": require_main_guard, "__file__": str(script)}
    with nullcontext() if guarded else pytest.raises(DgpuError, match="expected a call within"):
        exec(compile(source, str(script), "exec"), names | {"__name__": "__main__"})


@pytest.mark.multigpu
def test_start_where_memory_is_in_use() -> None:
    """A worker gets its pool beside another process that holds most of a GPU."""
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    held, done = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(0.7, held, done))
    process.start()
    try:
        assert held.wait(60)
        with dgpu.start(n_workers=2, dashboard_address=":0") as client:
            assert len(client.scheduler_info(n_workers=-1)["workers"]) == 2
            import dask.array as da

            x = da.ones((512, 512), chunks=256)
            np.testing.assert_array_equal((x @ x).compute().get(), np.full((512, 512), 512.0))
    finally:
        done.set()
        process.join(60)


@pytest.mark.multigpu
def test_start_where_no_memory_is_left() -> None:
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    held, done = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(0.99, held, done))
    process.start()
    try:
        assert held.wait(60)
        with pytest.raises(
            DgpuError, match=rf"on each GPU, but GPU {visible_gpus()[0]} has .* free"
        ):
            dgpu.start(n_workers=2)
    finally:
        done.set()
        process.join(60)


@pytest.mark.multigpu
def test_start_names_the_worker_whose_pool_is_too_large() -> None:
    first = read_memory(visible_gpus())[0]
    message = rf"(on GPU {first.name}|on the GPUs could not start).*free"
    with pytest.raises(DgpuError, match=message):
        dgpu.start(
            n_workers=1,
            rmm_pool_size=2 * first.total,
            rmm_allocator_external_lib_list="cupy",
            dashboard_address=":0",
        )


def _hold(share: float, held: Any, done: Any) -> None:
    """Keep a share of the free memory of the first GPU."""
    import cupy

    free, _ = cupy.cuda.runtime.memGetInfo()
    block = cupy.cuda.memory.alloc(int(free * share))
    held.set()
    done.wait(300)
    del block
