"""Reports for users: explain, progress, health."""
