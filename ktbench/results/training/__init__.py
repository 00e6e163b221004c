"""What trainings taught, over seeds."""
