"""Pieces of a graph that need a collective, each with the rule that finds it."""
