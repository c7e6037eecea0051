"""Distributed algorithms: plan (pure), cost, rank program, reference; one stem each."""
