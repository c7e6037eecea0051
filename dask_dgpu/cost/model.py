"""Predicted times of matrix products, with each strategy and with plain Dask."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from dask.utils import format_bytes

from dask_dgpu.algorithms.pencil_fft.plan import even_chunks
from dask_dgpu.algorithms.summa.choose import plan_summa
from dask_dgpu.algorithms.summa.plan import STRATEGIES, Operand, Strategy
from dask_dgpu.arguments import check_choice, expected, integer
from dask_dgpu.cost.config import ClusterConfig
from dask_dgpu.cost.table import Rows, Shown, quantity
from dask_dgpu.operations import OPERATIONS, Cost
from dask_dgpu.operations.matmul import PartProduct
from graph_opt.model.cost import dask_product_seconds, gang_seconds
from graph_opt.model.layout import cuts_of, dealt, dtype_named

DASK = "dask"
"""The name of plain Dask in a report."""


@dataclass(frozen=True)
class Estimate:
    """The predicted cost of a matrix product.

    Parameters
    ----------
    strategy : str
        As in :meth:`CostModel.estimate_matmul`, or ``"dask"``.
    seconds : float
        Predicted time.
    moved_bytes, peak_bytes : int
        Bytes that the busiest rank receives, and the most that a rank holds. Plain Dask has no
        plan, so both are 0.
    text : str
        Mesh and panels in a few words.
    """

    strategy: str
    seconds: float
    moved_bytes: int
    peak_bytes: int
    text: str


@dataclass(frozen=True)
class Report(Shown):
    """The estimates of one product, the quickest first. Prints and displays as a table.

    Parameters
    ----------
    title : str
        The product.
    estimates : tuple of Estimate
        One per strategy, and plain Dask.
    """

    title: str
    estimates: tuple[Estimate, ...]

    def _rows(self) -> Rows:
        rows = [
            (
                estimate.strategy,
                quantity(estimate.seconds, "s"),
                format_bytes(estimate.moved_bytes) if estimate.strategy != DASK else "",
                format_bytes(estimate.peak_bytes) if estimate.strategy != DASK else "",
                estimate.text,
            )
            for estimate in self.estimates
        ]
        return Rows(self.title, ("strategy", "time", "received", "held", "plan"), rows)


@dataclass(frozen=True)
class CostModel:
    """The cost model that decides between gangs and plain Dask, for matrix products.

    Parameters
    ----------
    config : ClusterConfig
        The rates of the cluster, as from :meth:`ClusterConfig.detect`.

    Notes
    -----
    Operands have ``chunks`` blocks along each axis, in even shares of the workers, in row-major
    order. The optimizer predicts products by the same functions, with the chunks of the arrays.
    """

    config: ClusterConfig

    def __post_init__(self) -> None:
        if not isinstance(self.config, ClusterConfig):
            expected("config", "a ClusterConfig", self.config, TypeError)

    def estimate_matmul(
        self,
        M: int,
        K: int,
        N: int,
        strategy: Strategy = "auto",
        *,
        dtype: str = "float64",
        chunks: int | None = None,
    ) -> Estimate:
        """Predict the product of matrices of shapes (M, K) and (K, N), which are in memory.

        Parameters
        ----------
        M, K, N : int
            Lengths, 0 or more.
        strategy : str, optional
            ``"row"``: each rank computes rows of the result, and the right operand is sent around.
            ``"column"``: columns, and the left operand is sent around. ``"summa"``: each computes a
            rectangle, on the best mesh of two axes. ``"inner"``: each multiplies a part of the
            contraction, and the products are added. ``"auto"``: the quickest of all meshes.
        dtype : str, optional
            The dtype of operands and result.
        chunks : int, optional
            Blocks along each axis; by default twice the number of workers.

        Returns
        -------
        Estimate
            Time, bytes and plan.

        Raises
        ------
        ValueError
            If ``strategy`` is unknown, a length is negative, or ``chunks`` is not positive.
        TypeError
            If a length is no integer, or ``dtype`` is no dtype.
        """
        check_choice("strategy", strategy, STRATEGIES)
        size = max(1, self.config.facts.workers)
        a, b = self._operands(M, K, N, dtype, chunks)
        plan = plan_summa(a, b, a.dtype, size, self.config.machine, strategy=strategy)
        everything = tuple(range(a.grid[0])), tuple(range(b.grid[1]))
        part = PartProduct(plan, (a.rows, b.columns), *everything, ())
        cost: Cost = OPERATIONS["matmul"].cost(part, self.config.machine)
        tasks = prod(a.grid) + prod(b.grid) + a.grid[0] * b.grid[1] + 1
        seconds = cost.seconds + gang_seconds(self.config.machine, tasks, steps=1, at_once=True)
        return Estimate(strategy, seconds, cost.moved_bytes, cost.peak_bytes, cost.text)

    def best_matmul(
        self, M: int, K: int, N: int, *, dtype: str = "float64", chunks: int | None = None
    ) -> Estimate:
        """Return the quickest way to multiply matrices of shapes (M, K) and (K, N).

        Parameters
        ----------
        M, K, N : int
            Lengths, 0 or more.
        dtype : str, optional
            The dtype of operands and result.
        chunks : int, optional
            Blocks along each axis; by default twice the number of workers.

        Returns
        -------
        Estimate
            That of a named strategy, of ``"auto"`` if another mesh is quicker than these, or of
            plain Dask.
        """
        return self.report(M, K, N, dtype=dtype, chunks=chunks).estimates[0]

    def report(
        self, M: int, K: int, N: int, *, dtype: str = "float64", chunks: int | None = None
    ) -> Report:
        """Compare strategies and plain Dask for matrices of shapes (M, K) and (K, N).

        Parameters
        ----------
        M, K, N : int
            Lengths, 0 or more.
        dtype : str, optional
            The dtype of operands and result.
        chunks : int, optional
            Blocks along each axis; by default twice the number of workers.

        Returns
        -------
        Report
            The quickest first. Prints as a table, and displays as one in a notebook.
        """
        # "auto" is the last, so that of equals a named strategy comes first
        named: tuple[Strategy, ...] = ("row", "column", "summa", "inner", "auto")
        estimates = [
            self.estimate_matmul(M, K, N, each, dtype=dtype, chunks=chunks) for each in named
        ]
        estimates.append(self._plain(M, K, N, dtype, chunks))
        title = f"({M}, {K}) @ ({K}, {N}) {dtype} on {self.config.facts.workers} workers"
        return Report(title, tuple(sorted(estimates, key=lambda each: each.seconds)))

    def _plain(self, M: int, K: int, N: int, dtype: str, chunks: int | None) -> Estimate:
        facts, machine = self.config.facts, self.config.machine
        a, b = self._operands(M, K, N, dtype, chunks)
        blocks = a.grid[0], a.grid[1], b.grid[1]
        seconds = dask_product_seconds((M, K, N), blocks, a.dtype, max(1, facts.workers), machine)
        text = f"{2 * blocks[0] * blocks[1] * blocks[2]} tasks"
        return Estimate(DASK, seconds, 0, 0, text)

    def _operands(
        self, M: int, K: int, N: int, dtype: str, chunks: int | None
    ) -> tuple[Operand, Operand]:
        size = max(1, self.config.facts.workers)
        blocks = 2 * size if chunks is None else integer("chunks", chunks, 1)
        try:
            name = dtype_named(np.dtype(dtype).name).name
        except TypeError:
            expected("dtype", "a dtype", dtype, TypeError)
        lengths = zip(("M", "K", "N"), (M, K, N), strict=True)
        m, k, n = (cuts_of(even_chunks(integer(axis, n, 0), blocks)) for axis, n in lengths)
        return _operand(m, k, name, size), _operand(k, n, name, size)


def _operand(rows: tuple[int, ...], columns: tuple[int, ...], dtype: str, size: int) -> Operand:
    count = (len(rows) - 1) * (len(columns) - 1)
    return Operand((rows, columns), dealt(count, size), dtype)
