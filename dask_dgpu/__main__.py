"""``python -m dask_dgpu`` prints versions, devices, transports and settings."""

from dask_dgpu.observe.versions import show_versions

if __name__ == "__main__":
    show_versions()
