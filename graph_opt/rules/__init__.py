"""Rules: a pattern and a pure function each, listed in the order they are tried."""

from graph_opt.rules import matmul

RULES = (matmul.match,)

__all__ = ["RULES"]
