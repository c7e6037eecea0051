"""Pieces of a graph that need a collective, and regions of connected pieces."""
