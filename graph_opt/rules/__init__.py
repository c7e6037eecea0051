"""Rules: a pattern and a pure function each, listed in the order they are tried."""

from graph_opt.rules import fft, matmul, overlap, rechunk, stencil
from graph_opt.rules import sum as sums

RULES = (
    matmul.match,
    rechunk.match,
    fft.match,
    overlap.match,
    stencil.match,
    sums.match,
)

__all__ = ["RULES"]
