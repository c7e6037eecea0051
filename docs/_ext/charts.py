"""One chart and one table for each topic of the page Performance, from `benchmarks/results`.

`{chart} products-gpu` in a page shows both. Every number is the median of a recorded run; a
topic names records, never numbers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
OURS = "dask_dgpu"
COLOURS = {OURS: "#2f7ed8"}
OTHER = "#9aa5b1"


@dataclass(frozen=True)
class Way:
    """A way to compute something, and the record of its time.

    Parameters
    ----------
    name : str
        As the chart shows it.
    file, what : str
        The file under `benchmarks/results` and the field `what` of the record.
    fields : dict
        Other fields of the record.
    """

    name: str
    file: str
    what: str
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def record(self) -> dict[str, Any]:
        """The last record that matches."""
        wanted = {"what": self.what} | self.fields
        for record in reversed(records(self.file)):
            if all(_same(record.get(name), value) for name, value in wanted.items()):
                return record
        raise LookupError(f"{self.file}.jsonl has no record of {wanted}")

    @property
    def seconds(self) -> float:
        """The median of that run."""
        return float(self.record["median"])


@dataclass(frozen=True)
class Topic:
    """A chart and its table: problems, each computed in several ways."""

    title: str
    problems: dict[str, tuple[Way, ...]]


def _same(found: Any, wanted: Any) -> bool:
    return found == list(wanted) if isinstance(wanted, tuple) else found == wanted


@cache
def records(file: str) -> tuple[dict[str, Any], ...]:
    """Return the records of a file, in the order of their runs."""
    lines = (RESULTS / f"{file}.jsonl").read_text().splitlines()
    return tuple(json.loads(line) for line in lines)


def _products_gpu(dtype: str) -> tuple[Way, ...]:
    at = {"n": 32768, "dtype": dtype}
    blocks = at | {"chunk": 8192}
    return (
        Way(OURS, "summa-gpu-tcp", "end to end, dask_dgpu", blocks),
        Way("plain Dask + CuPy over UCX", "summa-gpu-ucx", "end to end, dask", blocks),
        Way("plain Dask + CuPy over TCP", "summa-gpu-tcp", "end to end, dask", blocks),
        Way("JAX, without Dask", "summa-gpu-peers", "matmul", at | {"peer": "jax"}),
    )


def _products_cpu(n: int, chunk: int) -> tuple[Way, ...]:
    best = "end to end, dask, its best chunks"
    return (
        Way(OURS, "summa-cpu", "end to end, dask_dgpu", {"n": n, "chunk": chunk}),
        Way("plain Dask", "summa-cpu", "end to end, dask", {"n": n, "chunk": chunk}),
        Way("plain Dask, 2 x 2 chunks", "summa-cpu", best, {"n": n}),
        Way("NumPy, one process", "summa-cpu", "numpy, one process", {"n": n}),
    )


def _transforms_gpu(n: int) -> tuple[Way, ...]:
    at = {"n": n, "chunk": n // 4}
    return (
        Way(OURS, "pencil_fft-gpu-tcp", "fft2, end to end, dask_dgpu", at),
        Way("plain Dask + CuPy over UCX", "pencil_fft-gpu-ucx", "fft2, end to end, dask", at),
        Way("plain Dask + CuPy over TCP", "pencil_fft-gpu-tcp", "fft2, end to end, dask", at),
        Way("JAX, without Dask", "pencil_fft-gpu-peers", "fft2, jax", {"n": n}),
    )


def _two(file: str, what: str, at: dict[str, Any]) -> tuple[Way, ...]:
    return (
        Way(OURS, file, f"{what}, end to end, dask_dgpu", at),
        Way("plain Dask, p2p rechunk", file, f"{what}, end to end, dask, p2p", at),
        Way("plain Dask, rechunk by tasks", file, f"{what}, end to end, dask, tasks", at),
    )


def _jacobi(n: int) -> tuple[Way, ...]:
    at = {"n": n}
    return (
        Way(OURS, "halo-gpu-tcp", "jacobi, end to end, dask_dgpu", at),
        Way("torch + NCCL + Triton", "halo-gpu-peers", "jacobi, torch", at),
        Way("JAX, without Dask", "halo-gpu-peers", "jacobi, jax", at),
    )


def _sums(file: str, what: str, shape: tuple[int, ...], **more: Any) -> tuple[Way, ...]:
    at = {"shape": shape, "dtype": "float32"} | more
    return (
        Way(f"{OURS}, compensated", file, f"{what}, compensated", at),
        Way(f"{OURS}, reproducible", file, f"{what}, reproducible", at),
        Way("plain Dask", file, f"{what}, dask", at),
    )


FILTER = {"n": 32768, "chunk": 8192}
TEN = {"n": 16384, "chunk": 4096}
TOPICS = {
    "products-gpu": Topic(
        "Product of 32768 x 32768, chunks of 8192",
        {"float32": _products_gpu("float32"), "float64": _products_gpu("float64")},
    ),
    "products-cpu": Topic(
        "Product of n x n, float64",
        {
            "n = 2048, chunks of 128": _products_cpu(2048, 128),
            "n = 4096, chunks of 512": _products_cpu(4096, 512),
        },
    ),
    "transforms-gpu": Topic(
        "fft2 of n x n, complex64, four slabs",
        {"n = 32768": _transforms_gpu(32768), "n = 65536": _transforms_gpu(65536)},
    ),
    "transforms-cpu": Topic(
        "4096 x 4096, complex128, eight slabs",
        {
            "fft2": _two("pencil_fft-cpu", "fft2", {"chunk": 512}),
            "rechunk, rows to columns": _two("pencil_fft-cpu", "rechunk", {"chunk": 512}),
        },
    ),
    "poisson-cpu": Topic(
        "Poisson's equation, 2048 x 2048, float64",
        {
            f"{kind} boundary": _two("poisson-cpu", kind, {"n": 2048, "chunk": 256})
            for kind in ("zero", "reflect", "periodic")
        },
    ),
    "regions-gpu": Topic(
        "Several operations in a row",
        {
            "filter of 32768 x 32768, complex64": (
                Way(OURS, "region-gpu-tcp", "filter, end to end, dask_dgpu", FILTER),
                Way("plain Dask + CuPy over TCP", "region-gpu-tcp", "filter, end to end, dask"),
                Way("JAX, without Dask", "region-gpu-peers", "filter, jax", {"n": 32768}),
            ),
            "ten products of 16384 x 16384, float32": (
                Way(OURS, "region-gpu-tcp", "ten products, end to end, dask_dgpu", TEN),
                Way(
                    "plain Dask + CuPy over TCP", "region-gpu-tcp", "ten products, end to end, dask"
                ),
                Way("JAX, without Dask", "region-gpu-peers", "ten products, jax", {"n": 16384}),
            ),
        },
    ),
    "regions-cpu": Topic(
        "Several operations in a row, float64",
        {
            "spectral Poisson solve, 2048 x 2048": (
                Way(OURS, "region-cpu", "spectral Poisson solve, dask_dgpu"),
                Way("plain Dask", "region-cpu", "spectral Poisson solve, dask"),
            ),
            "ten products of 1024 x 1024": (
                Way(OURS, "region-cpu", "ten products, dask_dgpu"),
                Way("plain Dask", "region-cpu", "ten products, dask"),
            ),
        },
    ),
    "stencils-gpu": Topic(
        "Jacobi's iteration, 1,000 iterations, float32",
        {"16384 x 16384": _jacobi(16384), "32768 x 32768": _jacobi(32768)},
    ),
    "overlaps-cpu": Topic(
        "One step of da.map_overlap in a loop of 100, 2048 x 2048, float64",
        {
            "chunks of 1024": (
                Way(OURS, "map_overlap-cpu", "a step of 100, dask_dgpu"),
                Way("plain Dask", "map_overlap-cpu", "a step of 100, dask"),
                Way("NumPy, one process", "map_overlap-cpu", "one step, numpy"),
            )
        },
    ),
    "sums-gpu": Topic(
        "Sum of 2^32 values, float32",
        {
            "all values": _sums("kahan_sum-gpu-tcp", "end to end", (2**32,)),
            "axis 0 of (2^28, 16)": _sums("kahan_sum-gpu-tcp", "end to end", (2**28, 16), axis=0),
        },
    ),
    "sums-cpu": Topic(
        "Sum, float32",
        {
            "2^28 values": _sums("kahan_sum-cpu", "sum", (2**28,)),
            "axis 0 of (2^24, 8)": _sums("kahan_sum-cpu", "sum", (2**24, 8), axis=0),
        },
    ),
}


def shown(seconds: float) -> str:
    """Return seconds with three digits and a unit."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def table(topic: Topic) -> str:
    """Return the table of a topic as Markdown: times, and how many times ours each is."""
    lines = ["| problem | way | time | compared with dask_dgpu |", "|---|---|--:|--:|"]
    for problem, ways in topic.problems.items():
        ours = ways[0].seconds
        for way in ways:
            name = f"**{way.name}**" if way.name.startswith(OURS) else way.name
            ratio = "" if way is ways[0] else _times(way.seconds / ours)
            time = shown(way.seconds).replace(" ", "\N{NO-BREAK SPACE}")
            lines.append(f"| {problem} | {name} | {time} | {ratio} |")
            problem = ""
    return "\n".join(lines)


def _times(ratio: float) -> str:
    return f"{ratio:.0f} x" if ratio >= 10 else f"{ratio:.2g} x"


def conditions(topic: Topic) -> str:
    """Return machine, dates, versions and files of the records of a topic."""
    ways = [way for each in topic.problems.values() for way in each]
    found = [way.record for way in ways]
    machine, versions = found[0]["machine"], found[0]["versions"]
    gpus = machine["gpus"]
    what = f"{machine['cores']} cores of {machine['cpu']}, {machine['ranks']} workers with a thread"
    if gpus:
        what = f"{len(gpus)} x {gpus[0]}, {machine['ranks']} workers"
    packages = ["dask", "numpy", "torch"] + (["cupy"] if gpus else [])
    named = ", ".join(f"{name} {versions[name]}" for name in packages)
    dates = sorted({record["date"][:10] for record in found})
    files = ", ".join(f"`{name}.jsonl`" for name in dict.fromkeys(way.file for way in ways))
    return f"{what}; {named}; {' and '.join(dates)}; {files}. Medians."


def draw(topic: Topic, path: Path) -> None:
    """Draw the times of a topic as bars; the axis is logarithmic if they differ a lot."""
    from matplotlib.figure import Figure

    bars = [(None, None)]
    for problem, ways in topic.problems.items():
        bars += [(problem, None), *((problem, way) for way in ways), (None, None)]
    times = [way.seconds for _, way in bars if way is not None]
    figure = Figure(figsize=(8, 0.28 * len(bars) + 0.9), layout="constrained")
    axes = figure.add_subplot()
    labels = []
    for at, (problem, way) in enumerate(bars):
        if way is None:
            labels.append("")
            if problem is not None:
                axes.annotate(
                    problem, (0, at), xycoords=("axes fraction", "data"), xytext=(4, 0),
                    textcoords="offset points", va="center", weight="bold", fontsize=9,
                )  # fmt: skip
            continue
        labels.append(way.name)
        ours = way.name.startswith(OURS)
        axes.barh(at, way.seconds, color=COLOURS[OURS] if ours else OTHER, height=0.75)
        axes.annotate(
            shown(way.seconds), (way.seconds, at), xytext=(4, 0), textcoords="offset points",
            va="center", fontsize=9,
        )  # fmt: skip
    logarithmic = max(times) > 20 * min(times)
    if logarithmic:
        axes.set_xscale("log")
        axes.set_xlim(min(times) / 2, max(times) * 3)
    else:
        axes.set_xlim(0, max(times) * 1.15)
    axes.set_yticks(range(len(bars)), labels, fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_title(topic.title, fontsize=11, loc="left")
    axes.set_xlabel("seconds, logarithmic" if logarithmic else "seconds")
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


class ChartDirective(SphinxDirective):
    """Shows chart, table and conditions of a topic."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        topic = TOPICS[self.arguments[0]]
        name = f"{self.arguments[0]}.svg"
        draw(topic, Path(self.env.srcdir) / "performance" / "charts" / name)
        for file in {way.file for each in topic.problems.values() for way in each}:
            self.env.note_dependency(str(RESULTS / f"{file}.jsonl"))
        text = f"![{topic.title}: times](/performance/charts/{name})\n\n"
        return self.parse_text_to_nodes(text + table(topic) + "\n\n" + conditions(topic))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("chart", ChartDirective)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
