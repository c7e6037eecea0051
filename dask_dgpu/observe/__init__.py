"""What users see of gangs: explain, progress, health."""
