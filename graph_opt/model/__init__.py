"""Arrays, layouts, dtypes and costs, independent of Dask."""
