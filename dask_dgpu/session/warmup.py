"""Warm-up: connections and kernels before the first computation that matters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dask
import dask.array as da
from dask.base import is_dask_collection

from dask_dgpu.arguments import expected
from dask_dgpu.array import fft
from dask_dgpu.array.reductions import sum as compensated_sum
from dask_dgpu.array.stencil import stencil
from dask_dgpu.cost.console import counting_bars
from dask_dgpu.environment.facts import chosen_client
from dask_dgpu.errors import DgpuError
from dask_dgpu.optimizer import enabled_optimizer
from dask_dgpu.session.startup import BACKEND

if TYPE_CHECKING:
    from distributed import Client

ROWS = 16
"""Rows of each worker's block."""

DTYPES = ("float64", "float32")
"""Dtypes of the computations without examples."""


def warmup(client: Client | None = None, *examples: Any) -> None:
    """Connect all workers and compile kernels, so that no later first use has to.

    Parameters
    ----------
    client : distributed.Client, optional
        The cluster; by default that of the current client. Without a client, gangs of this
        process are warmed up.
    *examples : Dask collection
        Arrays or expressions like those that will be computed. They are computed once, and their
        results are dropped. Without examples, small products, transforms, reductions and stencils
        of float64 and float32 are.

    Raises
    ------
    TypeError
        If ``client`` is no client, or an asynchronous one, or an example no Dask collection.
    ValueError
        If ``client`` is closed.
    DgpuError
        If dask_dgpu is not enabled.

    Notes
    -----
    It draws a progress bar, whose last line stays. All workers take part in each computation, as
    gangs even if plain Dask is predicted to be quicker. Kernels depend on dtypes, numbers of axes
    and expressions, hardly on lengths: small examples serve as well as large ones. Compiled kernels
    are kept on disk, so each is compiled once on a host.

    An error of an example passes through.

    Examples
    --------
    >>> client = dgpu.start()  # doctest: +SKIP
    >>> dgpu.warmup(client, da.exp(x - x.mean(axis=0)))  # doctest: +SKIP
    warm-up  ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 1/1 0:00:02
    """
    client = chosen_client(client)
    for example in examples:
        if not is_dask_collection(example):
            expected("each of examples", "a Dask collection", example, TypeError)
    optimizer = enabled_optimizer()
    if optimizer is None:
        raise DgpuError("dask_dgpu is not enabled; call dask_dgpu.enable(client) first")
    ranks = optimizer.facts.workers or optimizer.settings.local_ranks
    always = replace(optimizer, settings=replace(optimizer.settings, when="always"))
    # blocks on the devices, for which other kernels are needed than for those of the host
    backend = {BACKEND: "dgpu"} if optimizer.facts.device == "cuda" else {}
    with dask.config.set(backend):
        work = [("example", example) for example in examples] or list(_usual(ranks))
    with counting_bars() as bars, dask.config.set(array_optimize=always):
        bar = bars.add_task("warm-up", total=len(work))
        for name, collection in work:
            bars.update(bar, description=f"warm-up  {name}")
            _compute(client, collection)
            bars.advance(bar)
        bars.update(bar, description="warm-up  done")


def _usual(ranks: int) -> Iterator[tuple[str, da.Array]]:
    """Yield names and small computations, with blocks on each of ``ranks`` workers."""
    for dtype in DTYPES:
        side = 2 * ROWS * ranks  # several blocks even for one rank
        x = da.ones((side, side), chunks=(ROWS, side), dtype=dtype)
        yield "matmul", x @ x.T
        passed = abs(da.fft.fftfreq(side, chunks=ROWS)) < 0.25
        yield "fft2", fft.ifft2(fft.fft2(x) * passed).real
        yield "rechunk", x.rechunk((side, ROWS))
        yield "mean, std", x - x.mean(axis=0) + x.std(axis=0)
        yield "sum", x - compensated_sum(x, axis=0)
        yield "argmax", x - x.argmax(axis=0)
        yield "stencil", stencil(x, iterations=2)


def _compute(client: Client | None, collection: Any) -> None:
    """Compute a collection where its blocks are, and drop the result."""
    if client is None:
        collection.persist(scheduler="threads")
        return
    from distributed import futures_of, wait

    made = client.persist(collection)
    wait(made)
    for future in futures_of(made):
        if future.status == "error":
            future.result()
