"""Programs that stay on the ranks and are called, not scheduled."""
