"""Passes over a whole graph: find pieces, form regions."""
