"""Iterative solvers of linear equations, as loops on the workers."""
