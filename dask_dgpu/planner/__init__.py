"""Decisions on graphs of any kind: rewrite, predict, fall back to Dask."""
