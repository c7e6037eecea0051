"""Plain sums of the same sizes on the same GPUs by JAX.

One process that drives all GPUs; every sum is compiled by ``jax.jit`` for arrays that are
sharded along the first axis, and complete on each GPU at the end. Run it by itself, with
nothing else on the GPUs: ``python benchmarks/peers/kahan_sum_jax.py``.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import Report
from kahan_sum_gpu import COLUMNS
from region_jax import timed

RESULTS = Path(__file__).parents[1] / "results"


def main() -> None:
    """Take all figures and print a table."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", type=int, default=1 << 31, help="float32 numbers of a GPU")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "kahan_sum-gpu-peers.jsonl")
    given = parser.parse_args()
    devices = jax.devices()
    report = Report(given.out, len(devices))
    mesh = Mesh(devices, ("ranks",))
    rows, whole = NamedSharding(mesh, P("ranks")), NamedSharding(mesh, P())
    values = given.values * len(devices)
    for shape, axis in (((values,), None), ((values // COLUMNS, COLUMNS), 0)):
        facts = {"shape": list(shape), "axis": axis, "dtype": "float32", "jax": jax.__version__}
        with report.guard("sum, jax", **facts):
            make = partial(jax.random.uniform, shape=shape, dtype=jnp.float32)
            x = jax.jit(make, out_shardings=rows)(jax.random.key(0))
            add = jax.jit(partial(jnp.sum, axis=axis), out_shardings=whole)
            report.add("sum, jax", timed(add, x, repetitions=given.repetitions), **facts)
    report.print()


if __name__ == "__main__":
    main()
