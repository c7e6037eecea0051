"""Functions of users that run once on each rank, on shards of arrays."""
