"""Reading and writing Dask's graphs; only this package knows Dask's internals."""
