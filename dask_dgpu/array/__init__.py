"""Public operations on arrays, one module or folder each."""
