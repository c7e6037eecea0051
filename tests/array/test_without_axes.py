"""Results without axes have the type that plain Dask returns: a scalar on CPUs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu

VECTOR = np.random.default_rng(0).integers(-4, 5, 24)
MATRIX = VECTOR.reshape(4, 6)

CASES: dict[str, Callable[[Any, Any], da.Array]] = {
    "dot": lambda x, m: x.dot(x),
    "vdot": lambda x, m: da.vdot(x, x),
    "matmul": lambda x, m: x @ x,
    "einsum of vectors": lambda x, m: da.einsum("i,i->", x, x),
    "einsum of matrices": lambda x, m: da.einsum("ij,ij->", m, m),
    "einsum of three": lambda x, m: dgpu.einsum("i,ij,j->", x[:4], m, x[:6]),
    "tensordot": lambda x, m: da.tensordot(m, m, axes=2),
    "tensordot of axes": lambda x, m: da.tensordot(m, m, axes=((0, 1), (0, 1))),
    "vectors and matrix": lambda x, m: x[:4] @ m @ x[:6],
    "then a function": lambda x, m: da.sqrt(abs(x.dot(x))) + 1,
    "then a cast": lambda x, m: x.dot(x).astype("complex64"),
    "then a view": lambda x, m: x.dot(x).T.reshape(())[()],
    "then a block function": lambda x, m: x.dot(x).map_blocks(lambda block: block),
    "then a product": lambda x, m: x.dot(x) * m.sum(),
    "then an index": lambda x, m: (m @ m.T)[1, 2],
    "nothing": lambda x, m: x[:0].dot(x[:0]),
    "sum": lambda x, m: (m @ m.T).sum(),
    "compensated sum": lambda x, m: dgpu.sum(x, method="compensated"),
    "mean": lambda x, m: m.mean(),
    "argmax": lambda x, m: x.real.argmax(),
    "norm": lambda x, m: da.linalg.norm(m),
    "all": lambda x, m: (x == x).all(),
    "array without axes": lambda x, m: da.from_array(np.array(3.0), chunks=()),
}


def operands(dtype: str, chunks: int) -> tuple[da.Array, da.Array]:
    shapes = ((VECTOR, chunks), (MATRIX, (min(chunks, 4), 5)))
    x, m = (da.from_array(a.astype(dtype), chunks=each) for a, each in shapes)
    return x, m


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("when", ["cheaper", "always"])
@pytest.mark.parametrize("case", CASES)
def test_type_is_that_of_plain_dask(case: str, when: Any, fuse: bool) -> None:
    for dtype, chunks in (("float64", 5), ("complex64", 7), ("int64", 24)):
        expected = CASES[case](*operands(dtype, chunks)).compute(scheduler="sync")
        with dgpu.enable(when=when, fuse=fuse, on_error="raise"):
            value = CASES[case](*operands(dtype, chunks)).compute(scheduler="sync")
        assert type(value) is type(expected)
        np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_blocks_of_later_functions_are_scalars() -> None:
    x, _ = operands("float64", 5)
    with dgpu.enable(when="always", on_error="raise"):
        kind = x.dot(x).map_blocks(lambda block: np.str_(type(block).__name__), dtype="U9")
        assert kind.compute(scheduler="sync") == "float64"


def test_energy_is_written_as_json() -> None:
    x, _ = operands("float64", 5)
    with dgpu.enable(when="always", on_error="raise"):
        text = json.dumps({"energy": x.dot(x).compute(scheduler="sync")})
    assert json.loads(text) == {"energy": float(VECTOR @ VECTOR)}
