"""Settings, and facts about the cluster and its GPUs."""
