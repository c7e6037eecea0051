"""Plans: what fits, the cuts, the bytes, and that they hold."""

from __future__ import annotations

import gc
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from tests.batches.test_run import A
from tests.support.memory import assert_peak, bounded


def test_rows_are_cut_while_the_right_operand_stays() -> None:
    plan = dgpu.plan("matmul", (20_000, 512), (512, 256))
    assert (plan.batches, plan.rows, dict(plan.cuts)) == (1, 20_000, {})
    with bounded(20 << 20):
        plan = dgpu.plan("matmul", (20_000, 512), (512, 256))
    assert list(plan.cuts) == ["axis 0 of the result"]
    assert plan.batches == -(-20_000 // plan.rows)
    assert plan.host_bytes == 8 * (20_000 * 512 + 512 * 256 + 20_000 * 256)  # each once
    assert [part.copies for part in plan.parts[:3]] == [2, 1, 2]


def test_an_operand_that_stays_is_there_once() -> None:
    with bounded(10 << 20):
        plan = dgpu.plan("matmul", (4000, 512), (512, 4000))
    assert list(plan.cuts) == ["axis 0 of the result", "axis 1 of the result"]
    assert [part.copies for part in plan.parts[:3]] == [2, 1, 2]
    times = -(-4000 // plan.cuts["axis 1 of the result"])
    assert plan.host_bytes == 8 * (times * 4000 * 512 + 512 * 4000 + 4000**2)


def test_a_tall_product_cuts_the_contraction() -> None:
    with bounded(20 << 20):
        plan = dgpu.plan("matmul", (100, 200_000), (200_000, 100))
    assert list(plan.cuts) == ["axis 1 of arrays[0]"]
    assert "partial results" in [part.name for part in plan.parts]


def test_dtype_and_options() -> None:
    one, two = (dgpu.plan("fft", (64, 64), dtype=dtype, axis=0) for dtype in ("c8", "c16"))
    doubled = 64 * 64 * 8  # transforms of single precision are computed in double precision
    assert two.peak_bytes == 2 * (one.peak_bytes - 2 * doubled)
    assert dgpu.plan("sum", (64, 64), axis=0).parts[-2].shape == (64,)
    assert dgpu.plan("einsum", "ij,jk->ki", (64, 3), (3, 5)).parts[-2].shape == (5, 64)


X = np.zeros((6, 4, 5))
ARGUMENTS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "axes of a sum": ("sum", (X, (0, 1))),
    "axes of np.sum": (np.sum, (X, (0, 1))),
    "lengths of a transform": ("fft2", (X, (8, 8))),
    "axes of a function": (np.transpose, (X, (2, 0, 1))),
    "number of axes": ("tensordot", (X, X.T, (2, 0))),
    "pairs of axes": ("tensordot", (X, X, ((0, 2), (0, 2)))),
    "sublists": ("einsum", (X, (0, 1, 2), X, (0, 1, 2), (1,))),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_are_those_of_run(name: str) -> None:
    op, args = ARGUMENTS[name]
    with bounded(1 << 20):
        plan = dgpu.plan(op, *args)
        shape = np.shape(dgpu.run(op, *args))
        if not plan.whole:
            assert plan.parts[-2].shape == shape
        if isinstance(op, str):  # the same from shapes
            shapes = [each.shape if isinstance(each, np.ndarray) else each for each in args]
            assert dgpu.plan(op, *shapes).to_dict() == plan.to_dict()


def test_what_does_not_fit() -> None:
    with bounded(1 << 20):
        plan = dgpu.plan("fft", (4, 1 << 20))
    assert not plan.feasible
    assert plan.batches == 0
    assert "its smallest batch needs" in plan.advice
    needed = plan.peak_bytes + 1
    with bounded(needed):
        assert dgpu.plan("fft", (4, 1 << 20)).batches == 4


def centred(x: Any) -> Any:
    return x - x.mean()


def limits(advice: str) -> dict[str, str]:
    """Return the settings and numbers of an advice."""
    pattern = r"(\S+) (?:to|of) at least (\S+ \S*B)"
    return dict(re.findall(pattern, advice))


@pytest.mark.parametrize(
    ("op", "margin", "room"),
    [
        ("fft", 0.0, 1),
        ("fft", 0.2, 3 << 20),
        ("sum", 0.2, 40),
        (lambda x: centred(2 * x), 0.0, 40),
        (lambda x: centred(2 * x), 0.2, 3 << 20),
    ],
)
def test_advice_is_enough(op: Any, margin: float, room: int) -> None:
    shape = (4, 100_003)
    with dask.config.set({"dgpu.memory.limit": room, "dgpu.memory.safety-margin": margin}):
        plan = dgpu.plan(op, shape)
    assert not plan.feasible
    (name, value), *others = limits(plan.advice).items()
    assert (name, others) == ("dgpu.memory.limit", [])
    with dask.config.set({name: value, "dgpu.memory.safety-margin": margin}):
        assert dgpu.plan(op, shape).feasible


def test_advice_is_enough_for_calls_at_a_time() -> None:
    calls = [(A,), (2 * A,), (A,)]
    with bounded(1000), pytest.raises(dgpu.errors.RunManyError) as caught:
        dgpu.run_many("fft", calls, axis=0)
    name, value = limits(str(caught.value)).popitem()
    with dask.config.set({name: value, "dgpu.memory.safety-margin": 0}):
        found = dgpu.run_many("fft", calls, axis=0)
    np.testing.assert_allclose(found[1], 2 * np.fft.fft(A, axis=0), rtol=1e-12, atol=1e-12)


def test_advice_after_enable_is_for_enable() -> None:
    shape = (4, 100_003)
    with dgpu.enable(memory_cap="8 kiB"):
        (advised,) = limits(dgpu.plan("fft", shape).advice).items()
    assert advised[0] == "memory_cap"
    with dgpu.enable(memory_cap=advised[1]):
        assert dgpu.plan("fft", shape).feasible
    settings: dict[str, Any] = {"memory_limit": "20 kiB", "memory_cap": "8 kiB"}
    with dgpu.enable(**settings):
        advised_both = limits(dgpu.plan("fft", shape).advice)
    assert advised_both.keys() == settings.keys()
    with dgpu.enable(**advised_both):
        assert dgpu.plan("fft", shape).feasible


def test_enable_gives_the_limit() -> None:
    with dgpu.enable(memory_limit="1 MiB", memory_safety_margin=0.5):
        assert dgpu.plan("exp", (9, 9)).room == 1 << 19
    with bounded(None):
        room = dgpu.plan("exp", (9, 9)).room
    assert room is not None
    assert room > 1 << 24  # the available memory


def test_table_and_values() -> None:
    with bounded(20 << 20):
        plan = dgpu.plan("matmul", (20_000, 512), (512, 256))
    text = str(plan)
    assert f"{plan.batches} batches" in text
    assert all(word in text for word in ("arrays[1]", "peak", "may be used", "between ranks"))
    HTMLParser().feed(plan._repr_html_())
    values = plan.to_dict()
    assert values["peak_bytes"] == sum(part["nbytes"] for part in values["parts"])
    assert values["cuts"] == {"axis 0 of the result": plan.rows}
    assert plan.seconds is not None
    assert plan.seconds > 0


def test_functions_are_planned_as_graphs() -> None:
    plan = dgpu.plan(lambda x: x - x.mean(), (64, 64))
    assert plan.whole
    assert "block by block in Dask" in str(plan)
    assert dgpu.plan(lambda x: x, da.ones((6, 4), chunks=2)).batches == 6


def test_blocks_that_later_tasks_need_count() -> None:
    x = np.ones((1000, 1000))
    with bounded(20 << 20):
        plan = dgpu.plan(lambda x: centred(2 * x), x)
        assert plan.feasible
        assert plan.parts[1].nbytes >= x.nbytes  # all blocks of the product wait for the mean
    with bounded(0.75 * x.nbytes):
        plan = dgpu.plan(lambda x: centred(2 * x), x)
        assert (plan.feasible, plan.batches, plan.seconds) == (False, 0, None)
        with pytest.raises(dgpu.errors.DgpuError, match="Dask holds blocks that several tasks"):
            dgpu.run(lambda x: centred(2 * x), x)


CALLS = {
    "product": ("matmul", [(3000, 600), (600, 500)], {}),
    "square product": ("matmul", [(1500, 700), (700, 1300)], {}),
    "tall product": ("einsum", [(3000, 600), (3000, 600)], {}),
    "transform": ("fft2", [(40, 200, 300)], {}),
    "transform, float32": ("fft2", [(60, 200, 300)], {}),
    "transform of real numbers, float32": ("rfft2", [(90, 200, 300)], {}),
    "reduction": ("sum", [(40, 200, 300)], {"axis": 1}),
    "elementwise": ("exp", [(40, 200, 300)], {}),
    "chain": ("gelu", [(40, 200, 300)], {}),
    "stencil": ("stencil", [(3000, 600)], {"iterations": 3}),
    "many sweeps": ("stencil", [(6000, 600)], {"iterations": 30, "boundary": "reflect"}),
    "periodic sweeps": ("stencil", [(6000, 600)], {"iterations": 20, "boundary": "periodic"}),
    "convolution": ("conv2d", [(60, 3, 64, 64), (8, 3, 3, 3)], {"padding": 1}),
    "centred": (centred, [(1000, 2000)], {}),
    "standardised": (lambda x: (x - x.mean(axis=0)) / x.std(axis=0), [(1000, 2000)], {}),
    "running sum": (lambda x: x.cumsum(axis=0), [(1000, 2000)], {}),
    "arg-maxima": (np.argmax, [(1000, 2000)], {"axis": 1}),
    "large image": ("conv2d", [(1, 3, 1009, 701), (4, 3, 5, 5)], {"padding": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("limit", [8 << 20, 20 << 20])
def test_plans_hold(name: str, limit: int, tmp_path: Path) -> None:
    """Operands and results are memory maps, so only parts of them are in memory."""
    op, shapes, options = CALLS[name]
    rng = np.random.default_rng(0)
    arrays = []
    for at, shape in enumerate(shapes):
        kind = "float32" if "float32" in name else "float64"
        np.save(tmp_path / f"{at}.npy", rng.random(shape).astype(kind))
        arrays.append(np.load(tmp_path / f"{at}.npy", mmap_mode="r"))
    args = ["ij,ik->jk", *arrays] if op == "einsum" else arrays
    with bounded(limit):
        plan = dgpu.plan(op, *args, **options)
        if not plan.feasible:
            pytest.skip("needs more")
        result = dgpu.run(op, *args, **options)
        out = np.lib.format.open_memmap(tmp_path / "out.npy", "w+", result.dtype, result.shape)
        del result
        gc.collect()
        assert_peak(lambda: dgpu.run(op, *args, out=out, **options), 1.1 * plan.peak_bytes)
    assert plan.batches > 1
