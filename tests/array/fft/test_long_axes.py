"""Cosines, sines and Poisson's equation along axes too long for a block, of a few elements."""

from __future__ import annotations

import dask.array as da
import pytest

import dask_dgpu as dgpu
from tests.array.fft.test_trigonometric import LINES, check, numbers
from tests.array.poisson.test_poisson import BOUNDARIES
from tests.array.poisson.test_poisson import check as check_poisson

pytestmark = pytest.mark.usefixtures("long_axes")


@pytest.mark.slow
@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize(
    "type_",
    [1, 2, 3, 4],
)
@pytest.mark.parametrize("ranks", [None, 3])
@pytest.mark.parametrize(
    "n",
    [
        240,
        241,
        254,
    ],
)
def test_a_long_axis(name: str, type_: int, ranks: int | None, n: int) -> None:
    for dtype in ("int16", "float32", "complex128"):
        a = numbers((2, n), dtype)
        x = da.from_array(a, chunks=(2, 40))
        y = getattr(dgpu.fft, name)(x, type_, norm="ortho")
        assert max(y.chunks[1]) < n / 2
        if ranks is None:
            check(y, a, name, type_, norm="ortho")
        else:
            with dgpu.enable(local_ranks=ranks, on_error="raise", when="always"):
                check(y, a, name, type_, norm="ortho")


def test_a_long_axis_among_others() -> None:
    a = numbers((3, 240), "float64")
    x = da.from_array(a, chunks=(2, 40))
    check(dgpu.fft.dstn(x, s=(5, 239)), a, "dstn", s=(5, 239))


def test_poisson() -> None:
    f = numbers((239,), "float64")
    for boundary in BOUNDARIES:
        u = dgpu.poisson(da.from_array(f, chunks=40), 0.5, boundary)
        assert u.numblocks[0] >= 4
        check_poisson(u, f, 0.5, (boundary,))
