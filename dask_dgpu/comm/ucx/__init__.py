"""The transport over UCX, for NumPy and CuPy arrays."""
