"""Pure functions on Dask graphs: parse, match, rewrite, cost and emit."""
