"""Rules: a pattern and a pure function each, listed in the order they are tried."""

from graph_opt.rules import fft, matmul, rechunk, sums

RULES = (matmul.match, rechunk.match, fft.match, sums.match)

__all__ = ["RULES"]
