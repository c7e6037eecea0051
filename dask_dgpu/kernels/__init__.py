"""Work on one device, no communication; the same signatures for NumPy and CuPy."""
