"""Optimization of graphs on the scheduler: rewrite, predict, fall back to Dask."""
