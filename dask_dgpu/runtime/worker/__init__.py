"""The worker's side of gangs."""
