"""Pure functions on Dask array graphs: parse, match, rewrite, check, emit.

Nothing here knows of arrays, devices, communicators or the distributed
scheduler; the package loads wherever Dask loads.
"""
