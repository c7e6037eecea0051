"""The time saved if a transfer in parts overlaps the compute on the parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dask_dgpu.arguments import expected, integer, real
from graph_opt.model.cost import pipelined


@dataclass(frozen=True)
class Overlap:
    """Predicted seconds of a transfer and a computation, with overlap and without.

    Parameters
    ----------
    sequential_s : float
        Seconds if the computation starts after the whole transfer.
    overlapped_s : float
        Seconds if each part is computed while the next one is in transit.
    """

    sequential_s: float
    overlapped_s: float

    @property
    def saved_s(self) -> float:
        """Seconds that the overlap saves."""
        return self.sequential_s - self.overlapped_s

    @property
    def speedup(self) -> float:
        """The time without overlap divided by the time with it; 1 if both are 0."""
        return self.sequential_s / self.overlapped_s if self.overlapped_s else 1.0

    def __str__(self) -> str:
        """Return all four values in one line."""
        return (
            f"{self.sequential_s:.3g} s one after the other, {self.overlapped_s:.3g} s with "
            f"overlap: {self.saved_s:.3g} s saved, {self.speedup:.2f} times as fast"
        )


def overlap_benefit(compute_s: float, comm_s: float, chunks: int) -> Overlap:
    """Predict the time saved if a transfer in equal chunks overlaps a computation on them.

    Parameters
    ----------
    compute_s : float
        Seconds of the whole computation.
    comm_s : float
        Seconds of the whole transfer.
    chunks : int
        Number of equal parts. A part is computed when it has arrived.

    Returns
    -------
    Overlap
        Seconds without overlap, with it, and saved, and the speedup.

    Raises
    ------
    TypeError
        If ``compute_s`` or ``comm_s`` is no number, or ``chunks`` no integer.
    ValueError
        If ``compute_s`` or ``comm_s`` is negative or not finite, or ``chunks`` is less than 1.

    Notes
    -----
    The first transfer and the last computation are never hidden. In between the longer of the
    two counts::

        transfer | 1 | 2 | 3 | 4 |
        compute      | 1     | 2     | 3     | 4     |

    The model assumes that a part costs nothing by itself, and that transfer and compute do not
    slow each other down. Measured times are longer if many parts have a latency each, or if
    both need the same cores.

    Examples
    --------
    >>> import dask_dgpu as dgpu
    >>> benefit = dgpu.cost.overlap_benefit(compute_s=8, comm_s=4, chunks=4)
    >>> print(benefit)
    12 s one after the other, 9 s with overlap: 3 s saved, 1.33 times as fast
    >>> benefit.saved_s
    3.0
    """
    compute, transfer = _seconds("compute_s", compute_s), _seconds("comm_s", comm_s)
    parts = integer("chunks", chunks, 1)
    overlapped = pipelined(compute, transfer, transfer / parts, parts)
    return Overlap(compute + transfer, min(compute + transfer, overlapped))


def _seconds(name: str, value: Any) -> float:
    what = "a finite number of at least 0"
    seconds = real(name, value, what)
    if seconds < 0:
        expected(name, what, value)
    return seconds
