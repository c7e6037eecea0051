"""Rules: a pattern and a pure function each, listed in the order they are tried."""

from graph_opt.rules import matmul, rechunk

RULES = (matmul.match, rechunk.match)

__all__ = ["RULES"]
