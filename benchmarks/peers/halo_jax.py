"""Jacobi's iteration on the same GPUs by JAX: ``shard_map``, edges by ``ppermute``, one ``jit``.

One process that drives all GPUs, each of which has a slab of rows. Run it by itself, with
nothing else on the GPUs: ``python benchmarks/peers/halo_jax.py``.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from halo_harness import jacobis_case
from harness import Report
from region_jax import timed

RESULTS = Path(__file__).parents[1] / "results"


def sweep(ranks: int, rhs: Any, u: Any) -> Any:
    """Return the next iterate of a slab; zeros come from where there is no neighbour."""
    import jax
    import jax.numpy as jnp

    above = jax.lax.ppermute(u[-1:], "ranks", [(i, i + 1) for i in range(ranks - 1)])
    below = jax.lax.ppermute(u[:1], "ranks", [(i + 1, i) for i in range(ranks - 1)])
    wide = jnp.pad(jnp.concatenate([above, u, below]), ((0, 0), (1, 1)))
    around = wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:]
    return 0.25 * (around - rhs)


def iterated(ranks: int, iterations: int, u: Any, rhs: Any) -> Any:
    """Return a slab after all iterations."""
    import jax

    return jax.lax.fori_loop(0, iterations, lambda _, now: sweep(ranks, rhs, now), u)


def main() -> None:
    """Take the figure, check the result, and print a table."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=32768, help="side of the grid")
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "halo-gpu-peers.jsonl")
    given = parser.parse_args()
    n, iterations = given.n, given.iterations
    devices = np.array(jax.devices())
    ranks = len(devices)
    report, mesh, rows = Report(given.out, ranks), Mesh(devices, ("ranks",)), P("ranks", None)
    (along, across), rhs_factor, last = jacobis_case((n, n), iterations)
    make = jax.jit(
        lambda factor: jnp.outer(factor, across.astype("float32")),
        out_shardings=NamedSharding(mesh, rows),
    )
    u, rhs = (make((factor * along).astype("float32")) for factor in (1.0, rhs_factor))
    body = partial(iterated, ranks, iterations)
    run = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(rows, rows), out_specs=rows))
    facts = {"n": n, "chunk": n // ranks, "dtype": "float32", "workers": ranks}
    facts |= {"iterations": iterations, "jax": jax.__version__}
    with report.guard("jacobi, jax", **facts):
        seconds = timed(run, u, rhs, repetitions=given.repetitions)
        iteration_us = median(seconds) / iterations * 1e6
        error = jax.jit(lambda x, u: abs(x - last * u).max() / abs(last * u).max())(run(u, rhs), u)
        facts |= {"iteration_us": iteration_us, "error_relative": float(error)}
        report.add("jacobi, jax", seconds, **facts)
    report.print()


if __name__ == "__main__":
    main()
