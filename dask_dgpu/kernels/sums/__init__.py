"""Sums with few or no rounding errors."""
