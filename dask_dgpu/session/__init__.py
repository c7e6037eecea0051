"""Starting, enabling and disabling dask_dgpu, and its patches of Dask's functions."""
