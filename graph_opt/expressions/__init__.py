"""Arrays of the package dask_array, which are expressions, as arrays of Dask."""
