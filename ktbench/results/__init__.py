"""TODO: what ktbench/results is for."""
