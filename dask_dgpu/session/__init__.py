"""Start, enable and disable the plugin; patches of Dask's functions."""
