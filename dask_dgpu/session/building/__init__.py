"""How graphs are built on the client: Dask builds one call of a kind."""
