"""The transport over NCCL, for CuPy arrays."""
