"""The cost model: measured rates of a cluster, and predictions."""

from dask_dgpu.cost.config import ClusterConfig
from dask_dgpu.cost.model import CostModel, Estimate, Report
from dask_dgpu.cost.overlap import Overlap, overlap_benefit

__all__ = ["ClusterConfig", "CostModel", "Estimate", "Overlap", "Report", "overlap_benefit"]
