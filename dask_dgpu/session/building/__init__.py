"""How graphs are built on the client: what Dask finds out each time is kept."""
