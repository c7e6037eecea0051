"""xarray on both packages of arrays: the same results, by gangs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import xarray as xr

import dask_dgpu as dgpu
from tests.support.chunked import FLOX_ONLY, GROUPED, chunked_by, data

WEIGHTS = xr.DataArray(np.arange(20.0), dims="t")


@pytest.fixture(params=["dask.array", "dask_array"])
def package(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The package of xarray's chunked arrays."""
    with chunked_by(request.param) as found:
        yield found


def line(t: Any, a: Any, b: Any) -> Any:
    return a + b * t


OPERATIONS: dict[str, Callable[[xr.DataArray], Any]] = {
    "dot": lambda d: xr.dot(d, d, dim="t"),
    "rolling": lambda d: d.rolling(t=3, center=True, min_periods=1).sum(),
    "rolling, mean": lambda d: d.rolling(t=4).mean(),
    "groupby_bins": lambda d: d.groupby_bins("x", 3).sum(),
    "apply_ufunc": lambda d: xr.apply_ufunc(np.sqrt, d, dask="allowed"),
    "apply_ufunc, blocks": lambda d: xr.apply_ufunc(
        np.sum,
        d.chunk(x=-1) if d.chunks else d,
        input_core_dims=[["x"]],
        kwargs={"axis": -1},
        dask="parallelized",
        output_dtypes=[float],
    ),
    "interp": lambda d: d.interp(t=[0.5, 3.25, 9.0]),
    "polyfit": lambda d: d.polyfit("t", 2).polyfit_coefficients,
    "curvefit": lambda d: (
        (d.chunk(t=-1) if d.chunks else d).curvefit("t", line).curvefit_coefficients
    ),
    "coarsen": lambda d: d.coarsen(t=5).mean(),
    "weighted": lambda d: d.weighted(WEIGHTS).mean("t"),
    "map_blocks": lambda d: d.map_blocks(lambda block: 2 * block),
    "std": lambda d: (d - d.mean("t")) / d.std("t"),
    "shift": lambda d: d.shift(t=2) - d,
    "diff": lambda d: d.diff("t", n=2),
    "cumsum": lambda d: d.cumsum("t"),
    "quantile": lambda d: (d.chunk(t=-1) if d.chunks else d).quantile(0.3, "t"),
    "where": lambda d: d.where(d > 0.5).fillna(0),
    "isel": lambda d: d.isel(t=[1, 5, 3]),
    "stack": lambda d: d.stack(z=("t", "x")),
    "concat": lambda d: xr.concat([d, 2 * d], "t"),
}
QUICK = ("dot", "rolling", "weighted")
MEETING = ("dot", "rolling", "rolling, mean", "polyfit", "weighted", "shift", "diff")
"""Operations whose blocks meet."""


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in OPERATIONS],
)
def test_results_are_those_of_numpy(name: str, package: Any) -> None:
    operation = OPERATIONS[name]
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        lazy = operation(data(t=5, x=6))
        assert isinstance(lazy.data, package.Array)
        assert bool(dgpu.explain(lazy.data).rewritten) or name not in MEETING
        found = lazy.compute()
    xr.testing.assert_allclose(found, operation(data()))


@pytest.mark.parametrize(
    ("name", "package"),
    [
        pytest.param(name, package, marks=() if name == "mean" else pytest.mark.slow)
        for name in GROUPED
        for package in ("dask.array", "dask_array")
        if package == "dask.array" or name not in FLOX_ONLY
    ],
    indirect=["package"],
)
def test_groups_are_those_of_numpy(name: str, package: Any) -> None:
    operation = GROUPED[name]
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        lazy = operation(data(t=5, x=6))
        assert isinstance(lazy.data, package.Array)
        assert dgpu.explain(lazy.data).regions
        found = lazy.compute()
    wanted = operation(data())
    xr.testing.assert_allclose(found.transpose(*wanted.dims), wanted)


def test_zarr(package: Any, tmp_path: Any) -> None:
    path = tmp_path / "x.zarr"
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        data(t=5, x=6).to_dataset(name="d").to_zarr(path, consolidated=False)
        lazy = xr.open_zarr(path, consolidated=False).d
        assert isinstance(lazy.data, package.Array)
        found = (lazy @ lazy.rename(t="u")).compute()
    values = data().values
    np.testing.assert_allclose(found, values @ values.T)


LATER = """
import sys
import numpy as np, dask_dgpu as dgpu, xarray as xr
with dgpu.enable(local_ranks=2, when="always", on_error="raise"):
    assert "dask_array" not in sys.modules
    import dask_array.xarray
    dask_array.xarray.register()
    x = xr.DataArray(np.ones((6, 4)), dims=("t", "x")).chunk(t=2, x=2)
    assert isinstance(x.data, dask_array.Array)
    assert dgpu.explain(xr.dot(x, x, dim="t").data).rewritten
    assert float(xr.dot(x, x, dim="t").sum()) == 24 * 4 / 4 * 4 / 4
    assert dask_array.Array._pinned.__module__ == "dask_dgpu.session.expressions"
assert dask_array.Array._pinned.__module__ == "dask_array._collection"
with dgpu.enable():
    pass
"""


def test_dask_array_may_be_imported_later() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", LATER], check=True, timeout=60)
