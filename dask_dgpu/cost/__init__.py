"""Predictions of what computations cost on a cluster."""

from dask_dgpu.cost.overlap import Overlap, overlap_benefit

__all__ = ["Overlap", "overlap_benefit"]
