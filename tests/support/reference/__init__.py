"""Sequential reference implementations of the distributed algorithms, in NumPy."""
