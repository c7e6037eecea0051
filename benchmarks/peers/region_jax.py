"""The same work on the same GPUs by JAX: transforms, a filter in the spectrum, a chain of products.

One process that drives all GPUs; every computation is compiled by ``jax.jit``. Run it by
itself, with nothing else on the GPUs: ``python benchmarks/peers/region_jax.py``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import Report
from region_gpu import PRODUCTS, WIDTH

RESULTS = Path(__file__).parents[1] / "results"


def timed(function: Callable[..., Any], *arguments: Any, repetitions: int) -> list[float]:
    """Return the seconds of each call but the first two, which compile."""
    seconds = []
    for _ in range(2 + repetitions):
        start = time.perf_counter()
        function(*arguments).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return seconds[2:]


def forward(rows: Any) -> Any:
    """Transform slabs of rows along both axes; the result is in slabs of columns."""
    import jax

    within = jax.numpy.fft.fft(rows, axis=1)
    columns = jax.lax.all_to_all(within, "ranks", split_axis=1, concat_axis=0, tiled=True)
    return jax.numpy.fft.fft(columns, axis=0)


def back(columns: Any) -> Any:
    """Undo :func:`forward`."""
    import jax

    within = jax.numpy.fft.ifft(columns, axis=0)
    rows = jax.lax.all_to_all(within, "ranks", split_axis=0, concat_axis=1, tiled=True)
    return jax.numpy.fft.ifft(rows, axis=1)


def filtered(n: int, ranks: int, rows: Any) -> Any:
    """Return slabs smoothed, as ``region_gpu.filtered`` does."""
    import jax
    import jax.numpy as jnp

    def k(frequency: Any) -> Any:
        return jnp.exp(-0.5 * (2 * np.pi * WIDTH * frequency) ** 2)

    frequency = jnp.fft.fftfreq(n).astype(jnp.float32)
    width = n // ranks
    mine = jax.lax.dynamic_slice(frequency, (jax.lax.axis_index("ranks") * width,), (width,))
    return back(forward(rows) * (k(frequency)[:, None] * k(mine)[None, :])).real


def chain(a: Any) -> Any:
    """Return ten products in full precision, as ``region_gpu.chain`` does."""
    import jax.numpy as jnp

    x = a
    for _ in range(PRODUCTS):
        x = jnp.matmul(x, a, precision="highest") * np.float32(2.0 / a.shape[0])
    return x


def main() -> None:
    """Take all figures and print a table."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, nargs="*", default=[32768, 65536], help="sides of images")
    parser.add_argument("--side", type=int, default=16384, help="side of the factors")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "region-gpu-peers.jsonl")
    given = parser.parse_args()
    devices = np.array(jax.devices())
    ranks = len(devices)
    report = Report(given.out, ranks)
    mesh = Mesh(devices, ("ranks",))
    rows, columns = P("ranks", None), P(None, "ranks")
    for n in given.n:
        make = jax.jit(
            lambda key, n=n: jax.random.normal(key, (n, n), jnp.complex64),
            out_shardings=NamedSharding(mesh, rows),
        )
        facts = {"n": n, "dtype": "complex64", "jax": jax.__version__}
        with report.guard("fft2, jax", **facts):
            x = make(jax.random.key(0))
            run = jax.jit(jax.shard_map(forward, mesh=mesh, in_specs=rows, out_specs=columns))
            report.add("fft2, jax", timed(run, x, repetitions=given.repetitions), **facts)
        with report.guard("filter, jax", **facts):
            body = partial(filtered, n, ranks)
            run = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=rows, out_specs=rows))
            report.add("filter, jax", timed(run, x, repetitions=given.repetitions), **facts)
        del x
    mesh = Mesh(devices.reshape({8: (2, 4), 4: (2, 2)}.get(ranks, (1, ranks))), ("i", "j"))
    tiles = NamedSharding(mesh, P("i", "j"))
    facts = {"n": given.side, "dtype": "float32", "jax": jax.__version__}
    with report.guard("ten products, jax", **facts):
        shape = (given.side, given.side)
        make = jax.jit(lambda key: jax.random.uniform(key, shape), out_shardings=tiles)
        run = jax.jit(chain, out_shardings=tiles)
        a = make(jax.random.key(0))
        report.add("ten products, jax", timed(run, a, repetitions=given.repetitions), **facts)
    report.print()


if __name__ == "__main__":
    main()
