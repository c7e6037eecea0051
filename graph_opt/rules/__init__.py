"""Rules: each recognizes one kind of piece in Dask's layers."""
