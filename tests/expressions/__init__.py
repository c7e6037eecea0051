"""Arrays of dask_array: the same programs as with those of Dask, and the same results."""
