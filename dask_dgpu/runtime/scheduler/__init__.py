"""The scheduler's side of gangs."""
