"""Our own operations that do not fit: several that need less memory, each in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage

import dask_dgpu as dgpu
from tests.planner.test_parts import ALWAYS, close, share_of
from tests.support.profiles import examples

RNG = np.random.default_rng(8)
A, B = RNG.random((96, 77)), RNG.random((20, 18, 22))
SWEEPS = 5
MODES = {"zero": "constant", "periodic": "wrap", "reflect": "reflect", "nearest": "nearest"}


def squares(chunks: tuple[int, int] = (12, 11)) -> da.Array:
    return da.from_array(A, chunks=chunks)


def boxes() -> da.Array:
    return da.from_array(B, chunks=(5, 6, 4))


TRANSFORMS: dict[str, tuple[Callable[[], da.Array], Any, int]] = {
    "two axes": (lambda: dgpu.fft.fft2(squares()), np.fft.fft2(A), 2),
    "rows": (lambda: dgpu.fft.fft2(squares((12, 77))), np.fft.fft2(A), 2),
    "columns": (lambda: dgpu.fft.fft2(squares((96, 7))), np.fft.fft2(A), 2),
    "real": (lambda: dgpu.fft.rfft2(squares()), np.fft.rfft2(A), 2),
    "to real": (lambda: dgpu.fft.irfft2(squares()), np.fft.irfft2(A), 2),
    "cropped": (lambda: dgpu.fft.fft2(squares(), s=(50, 90)), np.fft.fft2(A, s=(50, 90)), 2),
    "one axis": (lambda: dgpu.fft.fft(squares()), np.fft.fft(A), 1),
    "across blocks": (lambda: dgpu.fft.fft(squares((96, 7))), np.fft.fft(A), 2),
    "three axes": (lambda: dgpu.fft.fftn(boxes()), np.fft.fftn(B), 3),
    "images": (lambda: dgpu.fft.fft2(boxes()), np.fft.fft2(B), 1),
}


def computed(z: da.Array, room: int, ranks: int, programs: list[Any]) -> tuple[list[Any], Any]:
    """Compute an array in parts that all fit; return their predictions and the result."""
    with dgpu.enable(local_ranks=ranks, memory_limit=room, **ALWAYS):
        found = dgpu.explain(z)
        assert found.declined == ()
        assert all(prediction.peak_bytes <= room for _, prediction in found.regions)
        programs.clear()
        value = z.compute(scheduler="sync")
        assert len(programs) == sum(prediction.parts for _, prediction in found.regions)
        made = [(name, index) for each in programs for name, ids in each.outputs for index in ids]
        assert len(made) == len(set(made))
        return [prediction for _, prediction in found.regions], value


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("form", TRANSFORMS)
def test_transforms(form: str, ranks: int, programs: list[Any]) -> None:
    make, wanted, passes = TRANSFORMS[form]
    z = make()
    room = int(share_of(z, ranks) * 0.9)
    predictions, value = computed(z, room, ranks, programs)
    assert len(predictions) == passes
    assert all(prediction.parts > 1 for prediction in predictions)
    close(value, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("boundary", MODES)
@pytest.mark.parametrize("ranks", [1, 3])
def test_stencils(boundary: str, ranks: int, programs: list[Any]) -> None:
    wanted = A
    for _ in range(SWEEPS):
        wanted = ndimage.correlate(wanted, dgpu.LAPLACIAN_5PT, mode=MODES[boundary])
    z = dgpu.stencil(squares(), boundary=boundary, iterations=SWEEPS)
    predictions, value = computed(z, int(share_of(z, ranks) * 0.9), ranks, programs)
    assert len(predictions) == SWEEPS  # ghost cells of one sweep are a twelfth of a block
    close(value, wanted)


def test_several_sweeps_follow_each_exchange(programs: list[Any]) -> None:
    x = RNG.random((640, 20))
    z = dgpu.stencil(da.from_array(x, chunks=(64, 20)), iterations=7)
    predictions, value = computed(z, int(share_of(z, 1) * 0.9), 1, programs)
    assert len(predictions) == 2  # a sixteenth of 64 is 4 sweeps
    with dgpu.enable(local_ranks=1, **ALWAYS):
        close(value, z.compute(scheduler="sync"))


def test_only_wanted_parts_are_computed(programs: list[Any]) -> None:
    z = dgpu.fft.fft(squares())[:20]
    with dgpu.enable(local_ranks=2, **ALWAYS):
        close(z.compute(scheduler="sync"), np.fft.fft(A)[:20])
    (launch,) = programs
    (result,) = (node.value for node in launch.program.nodes if node.operation is not None)
    assert sum(result.block_shape(index)[0] for index in result.indices()) == 24  # of 96 rows


def test_what_fits_in_no_pass_is_left_as_it_is(programs: list[Any]) -> None:
    z = dgpu.fft.fft2(squares())
    with dgpu.enable(local_ranks=2, memory_limit=1000, **ALWAYS):
        found = dgpu.explain(z)
        assert [each.name for each in found.declined] == [z.name]
        close(z.compute(scheduler="sync"), np.fft.fft2(A))
    assert programs == []


def test_other_gangs_are_no_reason_for_passes(programs: list[Any]) -> None:
    z = dgpu.fft.fft2(squares())
    small = da.ones((8, 8), chunks=4)
    product = small @ small
    with dgpu.enable(local_ranks=1, memory_limit=8000, **ALWAYS):
        found = dgpu.explain(z, product)
        assert [piece.output.name for piece, _ in found.rewritten] == [product.name]


def test_annotations_are_those_of_the_operation() -> None:
    with dask.annotate(priority=3):
        z = dgpu.stencil(squares(), iterations=2)
    room = int(share_of(z, 1) * 0.9)
    with dgpu.enable(local_ranks=1, memory_limit=room, **ALWAYS):
        assert len(dgpu.explain(z).regions) > 1
        layers = dask.config.get("array_optimize")(z.dask, z.__dask_keys__()).layers
    gangs = [layer.annotations for name, layer in layers.items() if name.startswith("dgpu-gang-")]
    assert gangs == [{"priority": 3}] * 4  # two sweeps, each in two parts


LENGTHS = st.lists(st.integers(0, 4), min_size=1, max_size=5)


@examples(30)
@given(st.data(), LENGTHS, LENGTHS.filter(sum), st.integers(1, 3))
def test_parts_of_transforms(
    data: st.DataObject, rows: list[int], columns: list[int], ranks: int
) -> None:
    """Any rows of a transform along the other axis, also with empty chunks."""
    array = RNG.random((sum(rows), sum(columns)))
    x = da.from_array(array, chunks=(tuple(rows), tuple(columns)))
    start = data.draw(st.integers(0, sum(rows)))
    stop = data.draw(st.integers(start, sum(rows)))
    z = dgpu.fft.fft(x)
    with dgpu.enable(local_ranks=ranks, **ALWAYS):
        found = z[start:stop].compute(scheduler="sync")
    np.testing.assert_allclose(found, np.fft.fft(array)[start:stop], rtol=1e-12, atol=1e-12)
