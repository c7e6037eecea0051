"""What functions of users hold in this process: plans against peaks, and graphs made by hand."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from operator import getitem
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import Alias, DataNode, Task, TaskRef

import dask_dgpu as dgpu
from dask_dgpu.batches import streamed, whole
from dask_dgpu.batches.held import BYTES_PER_TASK, USUAL_GRAPH, Held, held
from dask_dgpu.batches.sizes import Declared
from tests.batches.test_plan import limits
from tests.batches.test_run import bounded
from tests.support.memory import assert_peak

Function = Callable[[Any], Any]

X = np.random.default_rng(0).normal(size=(4000, 500))

FUNCTIONS: dict[str, Function] = {
    "transform": lambda x: dgpu.fft.fft2(x).real,
    "cosine transform": lambda x: dgpu.fft.dctn(x) * 1,
    "stencil": lambda x: dgpu.stencil(x, boundary="periodic", iterations=3),
    "convolution": lambda x: dgpu.conv2d(x[None, None], np.ones((1, 1, 3, 3)), padding=1)[0, 0],
    "median": lambda x: da.median(x, axis=0),
    "percentiles": lambda x: da.percentile(x.ravel().rechunk(-1), [10, 50], method="linear"),
    "qr": lambda x: da.linalg.qr(x.rechunk((500, -1)))[0],
    "svd": lambda x: da.linalg.svd(x.rechunk((1000, -1)))[0],
    "scores": lambda x: (x - x.mean(axis=0)) / x.std(axis=0),
    "ufuncs": lambda x: da.exp(x) + 1,
    "transposed": lambda x: x.T + 1,
    "product": lambda x: x.T @ x,
    "sum": lambda x: (x * 2).sum(axis=0),
    "sort": lambda x: da.apply_along_axis(np.sort, 1, x, shape=(x.shape[1],), dtype=x.dtype),
    "user's": lambda x: x.map_blocks(lambda b: (b + 1) * (b - 1) / (b * b + 2)),
    "cumsum": lambda x: x.cumsum(axis=0),
    "overlap": lambda x: da.map_overlap(lambda b: b + 0, x, depth=1, boundary="reflect"),
    "variance": lambda x: x.var(axis=1),
    "argmax": lambda x: x.argmax(axis=0),
    "histogram": lambda x: da.histogram(x, bins=10, range=(-3, 3))[0],
    "topk": lambda x: da.topk(x, 2, axis=0),
    "argtopk": lambda x: da.argtopk(x, 2, axis=0),
}


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of tasks of each graph."""
    found = []

    def counted(result: da.Array) -> Any:
        tasks = streamed.tasks_of(result)
        found.append(len(tasks))
        return tasks

    monkeypatch.setattr(whole, "tasks_of", counted)
    return found


QUICK = ("scores", "sort", "product", "argmax")


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        *(pytest.param(each, 400 << 20, id=f"{each}-once") for each in FUNCTIONS),
        *(
            pytest.param(each, 24 << 20, id=each, marks=() if each in QUICK else pytest.mark.slow)
            for each in FUNCTIONS
        ),
    ],
)
def test_peaks_are_at_most_the_plan(name: str, limit: int, counts: list[int]) -> None:
    function = FUNCTIONS[name]
    out = np.empty_like(function(da.from_array(X, chunks=1000)).compute())
    with bounded(limit):
        plan = dgpu.plan(function, X)
        if not plan.feasible:
            (advised,) = limits(plan.advice).values()
    with bounded(limit if plan.feasible else dask.utils.parse_bytes(advised)):
        plan = dgpu.plan(function, X)
        assert plan.feasible
        objects = counts[-1] * BYTES_PER_TASK
        assert_peak(
            lambda: dgpu.run(function, X, out=out, progress=False), 1.1 * plan.peak_bytes + objects
        )


@pytest.mark.parametrize("dtype", ["u1", "f4", "c8"])
def test_moments_in_double_precision(dtype: str, counts: list[int]) -> None:
    x, out = X.astype(dtype), np.empty(len(X))
    with bounded(24 << 20):
        plan = dgpu.plan(FUNCTIONS["variance"], x)
        assert_peak(
            lambda: dgpu.run(FUNCTIONS["variance"], x, out=out, progress=False),
            1.1 * plan.peak_bytes + counts[-1] * BYTES_PER_TASK + (1 << 19),
        )


def test_a_gang_in_this_process_counts(counts: list[int]) -> None:
    out = np.empty_like(X)
    with dgpu.enable():
        plan = dgpu.plan(FUNCTIONS["transform"], X)
        assert_peak(
            lambda: dgpu.run(FUNCTIONS["transform"], X, out=out, progress=False),
            1.1 * plan.peak_bytes + counts[-1] * BYTES_PER_TASK,
        )
    assert plan.peak_bytes < 16 * X.nbytes


def test_blocks_between_are_no_larger_than_blocks_of_operands() -> None:
    with bounded(48 << 20):  # Dask's own limit would join all rows and columns to one block
        assert dgpu.plan(FUNCTIONS["transform"], X).feasible


@pytest.mark.filterwarnings("ignore:Increasing number of chunks")
def test_graphs_that_explode_are_refused() -> None:
    counts = []

    def gram(x: Any) -> Any:
        counts.append(x.npartitions)
        return x.T @ x

    with bounded(2 << 20):
        assert not dgpu.plan(gram, (4000, 4000)).feasible
    assert max(counts) < 1000


@pytest.mark.parametrize("name", ["transform", "product"])
def test_what_does_not_fit_is_not_counted_to_the_end(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, asked, shares, counted = 8 << 20, list[Any](), list[float](), list[int]()
    of = Declared.nbytes

    def nbytes(self: Declared, key: Any) -> int | None:
        asked.append(key)
        return of(self, key)

    def compared(tasks: Any, declared: Declared, threads: int, most: float) -> Held:
        asked.clear()
        found, first = held(tasks, declared, threads, most), len(asked)
        full = held(tasks, declared, threads)
        assert found == full if full.nbytes <= most else most < found.nbytes <= full.nbytes
        shares.append(first / (len(asked) - first))
        if most != limit or full.nbytes <= limit:  # else blocks are loaded again
            counted.append(full.nbytes)
        return found

    monkeypatch.setattr(Declared, "nbytes", nbytes)
    monkeypatch.setattr(whole, "held", compared)
    with bounded(limit):
        assert dgpu.plan(FUNCTIONS[name], X.shape).peak_bytes == min(counted)
    assert min(shares) < 0.5


def test_no_garbage_is_collected_while_tasks_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise RuntimeError(f"collects: {gc.isenabled()}")

    monkeypatch.setattr(whole, "held", failing)
    with bounded(8 << 20), pytest.raises(RuntimeError, match="collects: False"):
        dgpu.plan(FUNCTIONS["ufuncs"], X)
    assert gc.isenabled()


def blocks(count: int) -> Iterator[Any]:
    """Yield tasks that make blocks of an array of ``count`` blocks."""
    for at in range(count):
        yield Task(("made", at), np.exp, 1.0)


def waiting(tasks: list[Any], threads: int = 1) -> Held:
    """Return what threads hold of blocks of 80 bytes."""
    made = da.ones(100, chunks=10, name="made")
    return held({task.key: task for task in tasks}, Declared(made, (), {}, 80), threads)


def test_views_keep_the_block() -> None:
    made, *_ = blocks(1)
    part = Task(("part", 0), getitem, TaskRef(made.key), slice(0, 1))
    same = Alias(("same", 0), part.key)
    copy = Task(("copy", 0), getitem, TaskRef(made.key), [0, 1])
    other = Task(("made", 1), np.exp, TaskRef(same.key))
    assert waiting([made, part, same, other]) == Held(80, 80)
    assert waiting([made, copy]).nbytes > waiting([made, part]).nbytes


def test_arrays_that_exist_do_not_count() -> None:
    exists = DataNode(("data", 0), np.ones(10))
    assert waiting([exists, Task(("made", 0), np.exp, TaskRef(exists.key))]) == Held(0, 80)


def test_blocks_wait_for_the_last_reader() -> None:
    made = list(blocks(5))
    pairs = [
        Task(("made", 5 + at), np.add, TaskRef(made[0].key), TaskRef(each.key))
        for at, each in enumerate(made[1:])
    ]
    # the first one, and one of the others at a time
    assert waiting([*made, *pairs]) == Held(2 * 80, 80)
    assert waiting([*made, *pairs], threads=2).at_work == 2 * 80


def test_fused_tasks_free_what_no_step_needs() -> None:
    made, *_ = blocks(1)
    steps = [made]
    for at in range(1, 9):
        steps.append(Task(("made", at), np.exp, TaskRef(steps[-1].key)))
    assert waiting([Task.fuse(*steps)]) == Held(0, 2 * 80)


def test_parts_wait_with_the_blocks_that_they_are_parts_of() -> None:
    largest = da.topk(da.ones(100, chunks=10) + 1, 1, split_every=10)
    tasks = streamed.tasks_of(largest)
    assert len(tasks) < 20  # a block is computed with its largest elements
    assert held(tasks, Declared(largest, (), {}, 0), 1).nbytes >= 10 * 80


def test_tasks_count_if_they_are_many() -> None:
    few = USUAL_GRAPH // BYTES_PER_TASK
    assert waiting([Task(("made", at), np.ones, 10) for at in range(few)]).graph == 0
    assert waiting([Task(("made", at), np.ones, 10) for at in range(few + 10)]).graph > 0
