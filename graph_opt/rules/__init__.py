"""Rules: one module for each kind of piece in Dask's layers."""
