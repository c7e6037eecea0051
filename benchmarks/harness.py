"""What the benchmarks share: fresh inputs, honest clocks, JSON lines.

A clock stops when every task is done, none has failed, and every device has
finished what it was given. Inputs are new in each repetition, for Dask reuses
the results that it knows.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.array.optimization import optimize
from distributed import Client, wait

PACKAGES = {
    "dask": ("dask",),
    "distributed": ("distributed",),
    "numpy": ("numpy",),
    "torch": ("torch",),
    "ucxx": ("ucxx-cu13", "ucxx-cu12"),
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
}

_seeds = count(time.time_ns() % 2**31)


def options(description: str | None, out: Path) -> argparse.ArgumentParser:
    """Return a parser of the options of a benchmark without GPUs: ``--quick`` and ``--out``.

    Parameters
    ----------
    description : str
        Of the benchmark.
    out : Path
        Where figures go by default.

    Returns
    -------
    argparse.ArgumentParser
        To add more options.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="small sizes, once: a smoke test")
    parser.add_argument("--out", type=Path, default=out, help="where JSON lines are appended")
    return parser


class Report:
    """Figures of one run: a JSON line each, and a table at the end.

    Parameters
    ----------
    out : Path
        Lines are appended here, each as soon as it is known.
    ranks : int
        Processes or GPUs that compute.
    """

    def __init__(self, out: Path, ranks: int) -> None:
        self.out = out
        self.facts: dict[str, Any] = {
            "versions": versions(),
            "machine": {**machine(), "ranks": ranks},
        }
        self.rows: list[dict[str, Any]] = []
        out.parent.mkdir(parents=True, exist_ok=True)

    def add(
        self,
        what: str,
        seconds: list[float] | None = None,
        *,
        n: int | None = None,
        chunk: int | None = None,
        dtype: str | None = None,
        ratio: float | None = None,
        **more: Any,
    ) -> None:
        """Write one figure.

        Parameters
        ----------
        what : str
            What was measured.
        seconds : list of float, optional
            One a repetition, in their order.
        n, chunk : int, optional
            Side of the matrices and of their chunks.
        dtype : str, optional
            Of the matrices.
        ratio : float, optional
            The median over that of what it is compared with.
        **more
            Whatever else belongs to the figure.
        """
        figure = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "what": what,
            "n": n,
            "chunk": chunk,
            "dtype": dtype,
            "seconds": seconds,
            "median": median(seconds) if seconds else None,
            "ratio": ratio,
            **more,
        }
        self.rows.append(figure)
        with self.out.open("a") as lines:
            lines.write(json.dumps({**figure, **self.facts}, default=str) + "\n")

    @contextmanager
    def guard(self, what: str, **facts: Any) -> Iterator[None]:
        """Write an error line in place of a figure that could not be taken.

        Yields
        ------
        None
            The figure is taken in the block.
        """
        try:
            yield
        except Exception as error:
            self.add(what, error=f"{type(error).__name__}: {error}"[:500], **facts)

    def print(self) -> None:
        """Print all figures as a table."""
        known = ("what", "n", "chunk", "dtype", "median", "ratio")
        lines = [["what", "n", "chunk", "dtype", "median s", "ratio", ""]]
        for row in self.rows:
            rest = {k: v for k, v in row.items() if k not in (*known, "date", "seconds")}
            text = ", ".join(f"{name} {_show(value)}" for name, value in rest.items())
            lines.append([*(_show(row[name]) for name in known), text])
        widths = [max(len(line[i]) for line in lines) for i in range(len(known))]
        for line in lines:
            cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
            print("  ".join([*cells, line[-1]]).rstrip())
        print(f"appended to {self.out}")


def _show(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return f"[{', '.join(map(_show, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages that matter, ``None`` for absent ones."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name, distributions in PACKAGES.items():
        found[name] = next(filter(None, map(_version, distributions)), None)
    return found


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def machine() -> dict[str, Any]:
    """Return the processor's model, the number of cores, and the models of the GPUs."""
    return {"cpu": _cpu_model(), "cores": os.cpu_count(), "gpus": _gpu_models()}


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return models[0] if models else platform.processor()


def _gpu_models() -> list[str]:
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return [str(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
    except Exception:
        return []


def fresh(n: int | tuple[int, ...], chunk: int | tuple[int, ...], dtype: str) -> da.Array:
    """Return a matrix of random numbers that no task has seen yet, on the workers already."""
    shape = (n, n) if isinstance(n, int) else n
    numbers = da.random.default_rng(next(_seeds)).random(shape, chunks=chunk)
    matrix = numbers.astype(dtype).persist()
    finished(matrix)
    return matrix


def fresh_complex(shape: tuple[int, ...], rows: int, dtype: str) -> da.Array:
    """Return an array like that of :func:`fresh`, of complex numbers around 0, in slabs of rows."""
    # real and imaginary parts lie side by side: nothing is copied to join them
    slab = (rows, *shape[1:])
    parts, slab_parts = ((*each[:-1], 2 * each[-1]) for each in (shape, slab))
    real = np.empty(0, dtype).real.dtype
    numbers = da.random.default_rng(next(_seeds)).random(parts, chunks=slab_parts, dtype=real)
    array = numbers.map_blocks(
        _joined,
        dtype,
        dtype=dtype,
        chunks=da.core.normalize_chunks(slab, shape),
        meta=numbers._meta.astype(dtype),
    )
    return finished(array.persist())


def _joined(numbers: Any, dtype: str) -> Any:
    return (numbers - 0.5).view(dtype)


def finished(array: da.Array) -> da.Array:
    """Wait for a persisted array; raise if one of its blocks failed."""
    wait(array)
    for future in array.__dask_graph__().values():
        if getattr(future, "status", "finished") != "finished":
            future.result()
            raise RuntimeError(f"{future.key} is {future.status}")
    return array


def timed(
    client: Client,
    optimizer: Callable[..., Any],
    function: Callable[..., da.Array],
    arrays: tuple[da.Array, ...],
    synchronize: Callable[[], None],
) -> tuple[float, da.Array]:
    """Compute a function of persisted arrays.

    Parameters
    ----------
    client : Client
        The cluster.
    optimizer : callable
        Dask's own, or that of dask_dgpu.
    function : callable
        Makes a Dask array of ``arrays``.
    arrays : tuple of dask.array.Array
        Persisted.
    synchronize : callable
        Run on every worker, before the clock starts and before it stops.

    Returns
    -------
    seconds : float
        From the call of ``function`` on.
    result : dask.array.Array
        On the workers.
    """
    client.run(synchronize)
    with dask.config.set(array_optimize=optimizer):
        start = time.perf_counter()
        result = function(*arrays).persist()
        wait(result)
        client.run(synchronize)
        seconds = time.perf_counter() - start
    return seconds, finished(result)


def no_wait() -> None:
    """Synchronise a worker without a device: NumPy is done when a task is."""


PLAIN: Callable[..., Any] = optimize
"""Dask's own optimizer."""
